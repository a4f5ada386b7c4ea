"""Generate over a real socket: streams, choices, stops, log-probabilities, errors, cancels."""

from __future__ import annotations

import asyncio

import pytest
from antiphon.llm.v1 import chat_pb2, generate_pb2, llm_service_pb2
from antiphon_core.errors import (
    AntiphonError,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from antiphon_core.lifecycle import State
from antiphon_core.rpc.streams import messages, open_stream, read_all, result
from antiphon_llm.messages import Cancel, EmbedSubmit, Submit
from antiphon_llm.request_key import request_key
from llm_bench import LlmBench, chat, limit, tokens
from scripted_engine import CONTEXT, COUNT, FAIL, HOLD, REFUSE, SAY, STUCK
from support.waiting import until


async def encode(llm: LlmBench, text: str) -> list[int]:
    answer = await result(llm.stub.Tokenize(llm_service_pb2.TokenizeRequest(text=text)))
    return list(answer.ids)


async def test_a_stream_is_accepted_deltas_finished_completed(llm: LlmBench) -> None:
    ids = await encode(llm, "Grüße aus 東京 🎉!")
    found = await llm.generate(tokens(SAY, *ids))
    assert found.kinds[0] == "accepted"
    assert found.kinds[-2:] == ["finished", "completed"]
    assert found.text() == "Grüße aus 東京 🎉!"
    assert found.accepted[0].prompt_tokens == 1 + len(ids)
    assert found.finished[0].reason == generate_pb2.FINISH_REASON_STOP
    assert found.finished[0].stop_token_id == 2
    assert found.completed[0].usage.output_tokens == len(ids) + 1
    assert sum(delta.token_count for delta in found.deltas) == len(ids)


async def test_chat_is_rendered_with_the_models_template(llm: LlmBench) -> None:
    tokenized = await result(
        llm.stub.Tokenize(llm_service_pb2.TokenizeRequest(chat=chat("Hi <|im_end|>").chat))
    )
    assert tokenized.rendered.endswith("user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n")
    assert list(tokenized.ids).count(2) == 2
    async with open_stream(llm.stub.Generate(chat("Hi <|im_end|>", stop=limit(1)))) as call:
        async for _ in messages(call):
            break
    assert llm.seen(Submit)[0].prompt_ids == list(tokenized.ids)
    text = await result(llm.stub.Detokenize(llm_service_pb2.DetokenizeRequest(ids=tokenized.ids)))
    assert text.text == tokenized.rendered


async def test_choices_share_prompt_and_seed_and_are_told_apart(llm: LlmBench) -> None:
    sampling = generate_pb2.SamplingParams(seed=11, temperature=0.7)
    request = tokens(COUNT, choice_count=3, sampling=sampling, stop=limit(4))
    found = await llm.generate(request)
    assert sorted(found.finished) == [0, 1, 2]
    assert found.text(0) == found.text(1) == found.text(2) != ""
    assert found.completed[0].usage.output_tokens == 12
    assert found.completed[0].usage.prompt_tokens == 1
    submits = llm.seen(Submit)
    assert [(item.choice, item.sampling.seed) for item in submits] == [(0, 11), (1, 11), (2, 11)]
    assert len({item.request_id for item in submits}) == 3
    assert submits[0].sampling.temperature == 0.7


async def test_a_stop_string_ends_the_choice_and_frees_the_engine(llm: LlmBench) -> None:
    ids = await encode(llm, "one two three four five six seven")
    found = await llm.generate(tokens(SAY, *ids, stop=limit(50, strings=["three f", "zzz"])))
    assert found.text() == "one two "
    assert found.finished[0].reason == generate_pb2.FINISH_REASON_STOP
    assert found.finished[0].stop_string == "three f"
    assert found.kinds.count("completed") == 1
    assert found.completed[0].usage.output_tokens == 4
    await until(lambda: llm.seen(Cancel))


async def test_length_and_include_stop(llm: LlmBench) -> None:
    ids = await encode(llm, "one two three four")
    found = await llm.generate(tokens(SAY, *ids, stop=limit(2)))
    assert found.finished[0].reason == generate_pb2.FINISH_REASON_LENGTH
    stop = limit(9, strings=["two"], include_stop=True)
    assert (await llm.generate(tokens(SAY, *ids, stop=stop))).text() == "one two"


async def test_logprobs_token_ids_and_prompt_logprobs(llm: LlmBench) -> None:
    ids = await encode(llm, "é🎉")
    output = generate_pb2.OutputParams(logprobs=2, prompt_logprobs=1, token_ids=True)
    found = await llm.generate(tokens(SAY, *ids, output=output))
    items = [item for delta in found.deltas for item in delta.logprobs]
    assert b"".join(item.token for item in items) == "é🎉".encode()
    assert [index for delta in found.deltas for index in delta.token_ids] == ids
    assert (items[0].logprob, items[0].rank) == (-0.5, 3)
    assert [other.token_id for other in items[0].alternatives] == [ids[0], 7]
    prompt = found.accepted[0].prompt_logprobs
    assert [item.token_id for item in prompt] == [SAY, *ids]
    assert not prompt[0].alternatives
    assert (prompt[1].logprob, prompt[1].alternatives[0].token_id) == (-0.25, 7)
    assert [item.rank for item in prompt[:2]] == [0, 2]


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
async def test_missing_log_probabilities_are_an_internal_error(llm: LlmBench, name: str) -> None:
    llm.script.unscored = True
    output = generate_pb2.OutputParams(**{name: 1})
    with pytest.raises(Internal, match=r"log-prob|scored 1 of 2"):
        await llm.generate(tokens(COUNT, 9, output=output, stop=limit(3)))
    await until(lambda: llm.front.measures().running == 0)


async def test_the_terminal_reports_what_the_request_was_drawn_with(llm: LlmBench) -> None:
    sampling = generate_pb2.SamplingParams(
        temperature=0.7, seed=5, allowed_token_ids=[4, 5], banned_token_ids=[5],
        no_repeat_ngram_size=3, no_repeat_ngram_window=9, logit_bias={8: -1.5},
    )  # fmt: skip
    found = await llm.generate(tokens(COUNT, sampling=sampling, stop=limit(3)))
    effective = found.completed[0].effective
    assert effective.max_tokens == 3
    assert effective.random_key == request_key(5)
    given = {field.name for field, _ in sampling.ListFields()}
    for field, value in effective.sampling.ListFields():
        if field.name in given:
            assert value == getattr(sampling, field.name)
    assert abs(effective.sampling.top_p - 0.9) < 1e-6  # from the model's generation config
    assert not effective.sampling.HasField("draft_depth")
    again = await llm.generate(tokens(COUNT, sampling=effective.sampling, stop=limit(3)))
    assert again.completed[0].effective == effective


async def test_a_drawn_seed_is_reported_and_new_each_time(llm: LlmBench) -> None:
    seeds = set()
    for _ in range(3):
        found = await llm.generate(tokens(COUNT, stop=limit(1)))
        effective = found.completed[0].effective
        assert effective.random_key == request_key(effective.sampling.seed)
        seeds.add(effective.sampling.seed)
    assert len(seeds) == 3


@pytest.mark.parametrize("reasoning", [-1, 4])
async def test_usage_has_drafts_and_reasoning(llm: LlmBench, reasoning: int) -> None:
    llm.script.reasoning_tokens = reasoning
    found = await llm.generate(tokens(COUNT, choice_count=2, stop=limit(2)))
    usage = found.completed[0].usage
    assert (usage.accepted_draft_tokens, usage.rejected_draft_tokens) == (6, 2)
    assert usage.HasField("reasoning_tokens") == (reasoning >= 0)
    assert usage.reasoning_tokens == (8 if reasoning >= 0 else 0)


async def test_a_refusal_is_a_status_before_any_message(llm: LlmBench) -> None:
    with pytest.raises(ResourceExhausted) as caught:
        await llm.generate(tokens(REFUSE, 1, choice_count=2))
    assert caught.value.reason == "QUEUE_FULL"
    assert caught.value.retry_after == 2.5
    assert (caught.value.metadata["limit"], caught.value.metadata["observed"]) == ("2", "3")
    submitted = {item.request_id for item in llm.seen(Submit)}
    await until(lambda: {item.request_id for item in llm.seen(Cancel)} & submitted)


@pytest.mark.parametrize(
    ("door", "status"),
    [
        ("MEMORY_PRESSURE", ResourceExhausted),
        ("NO_BACKEND", Unavailable),
        ("DRAINING", Unavailable),
    ],
)
async def test_a_shut_door_refuses_before_the_engine_is_asked(
    llm: LlmBench, door: str, status: type[AntiphonError]
) -> None:
    assert llm.script is not None
    llm.script.door = door
    await until(lambda: llm.front._engine.gauges.door == door)
    assert llm.lifecycle.state is State.DEGRADED
    asked = len(llm.seen(Submit))
    with pytest.raises(status) as caught:
        await llm.generate(tokens(COUNT, stop=limit(1)))
    assert caught.value.reason == door and caught.value.retry_after
    bound = {"limit": "0", "observed": "0"} if door == "MEMORY_PRESSURE" else {}
    assert {name: caught.value.metadata.get(name) for name in bound} == bound
    assert len(llm.seen(Submit)) == asked
    llm.script.door = ""
    await until(lambda: not llm.front._engine.gauges.door)
    assert llm.lifecycle.state is State.READY
    assert (await llm.generate(tokens(COUNT, stop=limit(1)))).kinds[-1] == "completed"


@pytest.mark.parametrize("cached", [(0, 48, 48), (32, 48, 48)])
async def test_what_the_choices_find_of_each_other_is_no_hit(
    llm: LlmBench, cached: tuple[int, ...]
) -> None:
    assert llm.script is not None
    llm.script.cached = dict(enumerate(cached))
    found = await llm.generate(tokens(COUNT, choice_count=3, stop=limit(2)))
    assert found.completed[0].usage.cached_tokens == cached[0]


async def test_one_choices_failure_leaves_the_others(llm: LlmBench) -> None:
    found = await llm.generate(tokens(FAIL, 1, choice_count=2, stop=limit(5)))
    assert found.finished[1].reason == generate_pb2.FINISH_REASON_ERROR
    assert found.finished[1].error.message == "NaN logits"
    assert found.finished[0].reason == generate_pb2.FINISH_REASON_LENGTH
    assert found.kinds[-1] == "completed"


async def test_a_failure_of_the_only_choice_is_the_status(llm: LlmBench) -> None:
    received = []
    with pytest.raises(Internal) as caught:
        async with open_stream(llm.stub.Generate(tokens(FAIL, 0))) as call:
            async for message in messages(call):
                received.append(message.WhichOneof("event"))
    assert caught.value.reason == "BAD_LOGITS"
    assert "delta" in received
    assert "completed" not in received


async def test_the_deadline_is_the_earlier_one(llm: LlmBench) -> None:
    with pytest.raises(DeadlineExceeded):
        await read_all(llm.stub.Generate(tokens(COUNT, stop=limit(4000)), timeout=0.3))
    await until(lambda: llm.front.measures().running == 0)


@pytest.mark.parametrize(
    ("request_message", "reason", "field"),
    [
        (generate_pb2.GenerateRequest(), "MISSING_FIELD", "input"),
        (generate_pb2.GenerateRequest(text=""), "EMPTY_PROMPT", "text"),
        (tokens(1, 70000), "INVALID_VALUE", "tokens.ids[1]"),
        (tokens(*[COUNT] * CONTEXT), "CONTEXT_LENGTH_EXCEEDED", "input"),
        (tokens(COUNT, stop=limit(CONTEXT)), "CONTEXT_LENGTH_EXCEEDED", "stop.max_tokens"),
        (
            tokens(COUNT, sampling=generate_pb2.SamplingParams(temperature=float("nan"))),
            "INVALID_VALUE",
            "sampling.temperature",
        ),
        (
            tokens(COUNT, constraint=generate_pb2.Constraint(regex="a(")),
            "INVALID_SCHEMA",
            "constraint.regex",
        ),
        (
            generate_pb2.GenerateRequest(
                chat=generate_pb2.ChatInput(
                    messages=[chat_pb2.ChatMessage(role=2)], tools=[chat_pb2.Tool(name="f g")]
                )
            ),
            "INVALID_VALUE",
            "chat.tools[0].name",
        ),
        (
            generate_pb2.GenerateRequest(
                chat=generate_pb2.ChatInput(
                    messages=[
                        chat_pb2.ChatMessage(
                            role=2, parts=[chat_pb2.ContentPart(image=chat_pb2.MediaPart())]
                        )
                    ]
                )
            ),
            "UNSUPPORTED_MODALITY",
            "chat.messages[0].parts[0].image",
        ),
        (
            generate_pb2.GenerateRequest(
                chat=generate_pb2.ChatInput(
                    messages=[chat_pb2.ChatMessage(role=2)], template_kwargs_json="[1]"
                )
            ),
            "INVALID_VALUE",
            "chat.template_kwargs_json",
        ),
    ],
)
async def test_bad_requests_name_reason_and_field(
    llm: LlmBench, request_message: generate_pb2.GenerateRequest, reason: str, field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await llm.generate(request_message)
    assert (caught.value.reason, caught.value.field) == (reason, field)
    assert not llm.seen(Submit)


async def test_smallest_values_survive_the_wires_32_bits(llm: LlmBench) -> None:
    sampling = generate_pb2.SamplingParams(temperature=0.001, repetition_penalty=0.01)
    await llm.generate(tokens(COUNT, sampling=sampling, stop=limit(1)))
    assert llm.seen(Submit)[0].sampling.repetition_penalty == 0.01


async def test_unknown_models_and_unserved_methods(llm: LlmBench) -> None:
    with pytest.raises(NotFound) as caught:
        await llm.generate(tokens(COUNT, model="gpt-5"))
    assert caught.value.reason == "MODEL_NOT_FOUND"
    assert "smollm2-135m-instruct" in caught.value.metadata["allowed"]
    for call in (llm.stub.LoadAdapter(llm_service_pb2.LoadAdapterRequest()),):
        with pytest.raises(Unimplemented) as unserved:
            await result(call)
        assert unserved.value.reason == "UNSUPPORTED"
    with pytest.raises(Unimplemented):
        await read_all(llm.stub.Converse(iter([llm_service_pb2.ConverseRequest()])))


async def test_models_and_embeddings(llm: LlmBench) -> None:
    models = await result(llm.stub.ListModels(llm_service_pb2.ListModelsRequest()))
    model = models.models[0]
    assert (model.id, model.context_limit, model.chat) == ("smollm2-135m-instruct", CONTEXT, True)
    inputs = [
        llm_service_pb2.EmbedInput(tokens=generate_pb2.TokenInput(ids=[1, 2])),
        llm_service_pb2.EmbedInput(text="Hi"),
    ]
    request = llm_service_pb2.EmbedRequest(inputs=inputs, dimensions=2)
    answer = await result(llm.stub.Embed(request))
    assert [len(vector.values) for vector in answer.vectors] == [2, 2]
    assert answer.vectors[0].values == pytest.approx([0.5**0.5, 0.5**0.5])
    assert answer.prompt_tokens == 3


async def test_a_large_request_does_not_fill_the_queue(llm: LlmBench) -> None:
    inputs = [llm_service_pb2.EmbedInput(tokens=generate_pb2.TokenInput(ids=[n]))
              for n in range(300)]  # fmt: skip
    answer = await result(llm.stub.Embed(llm_service_pb2.EmbedRequest(inputs=inputs)))
    assert len(answer.vectors) == 300
    sent = llm.seen(EmbedSubmit)
    assert len(sent) == 300 and all(item.deadline > 0 for item in sent)


@pytest.mark.parametrize("kind", [COUNT, HOLD, STUCK], ids=["drawing", "queued", "prefilling"])
async def test_a_client_that_leaves_frees_the_engine_at_once(llm: LlmBench, kind: int) -> None:
    call = llm.stub.Generate(tokens(kind, choice_count=2))
    waiting = asyncio.ensure_future(call.read())
    await until(lambda: len(llm.seen(Submit)) == 2)
    if kind == COUNT:
        await waiting
    call.cancel()
    await until(lambda: len(llm.seen(Cancel)) == 2)
    assert llm.front.measures().running == llm.front.measures().waiting == 0
    await asyncio.gather(waiting, return_exceptions=True)


async def test_many_leave_at_random_and_nothing_stays(llm: LlmBench) -> None:
    async def leave(number: int) -> None:
        async with open_stream(llm.stub.Generate(tokens(COUNT, stop=limit(200)))) as call:
            async for _ in messages(call):
                number -= 1
                if number <= 0:
                    return

    await asyncio.gather(*(leave(number % 7) for number in range(50)))
    await until(lambda: llm.front.measures().running == 0)
    found = await llm.generate(tokens(COUNT, stop=limit(3)))
    assert found.completed[0].usage.output_tokens == 3


async def test_a_full_queue_closes_the_door(llm: LlmBench) -> None:
    calls = [llm.stub.Generate(tokens(HOLD, choice_count=16)) for _ in range(4)]
    readers = [asyncio.ensure_future(call.read()) for call in calls]
    await until(lambda: llm.front.measures().waiting == 64)
    with pytest.raises(ResourceExhausted) as caught:
        await llm.generate(tokens(COUNT))
    assert caught.value.metadata["limit"] == caught.value.metadata["observed"] == "64"
    assert caught.value.retry_after
    for call in calls:
        call.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    await until(lambda: llm.front.measures().waiting == 0)


async def test_waiting_batch_work_closes_the_door_to_batch_work_only(llm: LlmBench) -> None:
    batch = (("x-antiphon-priority", "batch"),)
    calls = [llm.stub.Generate(tokens(HOLD, choice_count=16), metadata=batch) for _ in range(4)]
    readers = [asyncio.ensure_future(call.read()) for call in calls]
    await until(lambda: llm.front.measures().waiting_batch == 64)
    assert llm.front.measures().waiting == 0
    with pytest.raises(ResourceExhausted):
        await read_all(llm.stub.Generate(tokens(COUNT), metadata=batch))
    found = await llm.generate(tokens(COUNT, stop=limit(3)))
    assert found.completed[0].usage.output_tokens == 3
    for call in calls:
        call.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    await until(lambda: llm.front.measures().waiting_batch == 0)


@pytest.mark.parametrize(
    ("mode", "cache"),
    [
        (generate_pb2.CACHE_MODE_UNSPECIFIED, True),
        (generate_pb2.CACHE_MODE_ON, True),
        (generate_pb2.CACHE_MODE_OFF, False),
    ],
)
async def test_the_cache_mode_reaches_the_engine(llm: LlmBench, mode: int, cache: bool) -> None:
    await llm.generate(tokens(COUNT, stop=limit(1), cache_mode=mode))
    assert [item.cache for item in llm.seen(Submit)] == [cache]


async def test_a_slow_reader_gets_larger_deltas_and_loses_nothing(llm: LlmBench) -> None:
    found = []
    async with open_stream(llm.stub.Generate(tokens(COUNT, stop=limit(3000)))) as call:
        async for message in messages(call):
            found.append(message)
            if len(found) == 2:
                await asyncio.sleep(0.5)
    deltas = [message.delta for message in found if message.HasField("delta")]
    assert sum(delta.token_count for delta in deltas) == 3000
    assert found[-1].completed.usage.output_tokens == 3000
