"""GenerateMany: requests of one stream share messages, and only messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from antiphon.llm.v1 import generate_pb2
from antiphon_core.errors import InvalidArgument
from antiphon_core.rpc.errors import from_status
from antiphon_core.rpc.streams import messages, open_stream
from antiphon_llm import multiplex
from antiphon_llm.front.encoding import EncodedPrompt, PromptEncoder
from antiphon_llm.front.events import Delta
from antiphon_llm.messages import Cancel, Submit
from google.protobuf.duration_pb2 import Duration
from llm_bench import LlmBench, limit, tokens
from scripted_engine import COUNT, HOLD, REFUSE, SAY
from support.waiting import until


def start(
    stream_id: str, request: generate_pb2.GenerateRequest, **fields: Any
) -> generate_pb2.GenerateManyRequest:
    action = generate_pb2.StartGenerate(stream_id=stream_id, request=request, **fields)
    return generate_pb2.GenerateManyRequest(start=action)


def cancel(stream_id: str) -> generate_pb2.GenerateManyRequest:
    return generate_pb2.GenerateManyRequest(cancel=generate_pb2.CancelGenerate(stream_id=stream_id))


class Reader:
    """Puts the columns and events of each stream back in order."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.kinds: dict[str, list[str]] = {}
        self.errors: dict[str, Any] = {}
        self.messages = 0
        self.tokens = 0

    def take(self, message: generate_pb2.GenerateManyResponse) -> None:
        self.messages += 1
        columns = zip(message.stream_ids, message.texts, message.token_counts, strict=True)
        for name, text, count in columns:
            self._delta(name, text, count)
        for event in message.events:
            if event.HasField("error"):
                self.errors[event.stream_id] = event.error
                self._kind(event.stream_id, "error")
                continue
            kind = event.response.WhichOneof("event")
            if kind == "delta":
                delta = event.response.delta
                self._delta(event.stream_id, delta.text, delta.token_count)
            else:
                self._kind(event.stream_id, kind)

    def _delta(self, name: str, text: str, count: int) -> None:
        self.texts[name] = self.texts.get(name, "") + text
        self.tokens += count
        self._kind(name, "delta")

    def _kind(self, name: str, kind: str) -> None:
        kinds = self.kinds.setdefault(name, [])
        if not kinds or kinds[-1] != kind:
            kinds.append(kind)


async def run(llm: LlmBench, *requests: generate_pb2.GenerateManyRequest) -> Reader:
    async def feed() -> AsyncIterator[generate_pb2.GenerateManyRequest]:
        for request in requests:
            yield request

    reader = Reader()
    async with open_stream(llm.stub.GenerateMany(feed())) as call:
        async for message in messages(call):
            reader.take(message)
    return reader


ORDER = ["accepted", "delta", "finished", "completed"]


async def test_each_stream_keeps_its_order_and_messages_are_shared(llm: LlmBench) -> None:
    requests = [start(f"r{i}", tokens(COUNT, stop=limit(40))) for i in range(8)]
    reader = await run(llm, *requests)
    assert reader.kinds == {f"r{i}": ORDER for i in range(8)}
    assert len(set(reader.texts.values())) == 1
    assert reader.tokens == 320
    assert reader.messages < 120


async def test_one_failure_leaves_the_others(llm: LlmBench) -> None:
    reader = await run(
        llm,
        start("good", tokens(COUNT, stop=limit(5))),
        start("refused", tokens(REFUSE, 0)),
        start("wrong", generate_pb2.GenerateRequest(text="")),
        start("other", tokens(COUNT, model="unknown")),
    )
    assert reader.kinds["good"] == ORDER
    assert {name: kinds for name, kinds in reader.kinds.items() if name != "good"} == {
        "refused": ["error"],
        "wrong": ["error"],
        "other": ["error"],
    }
    assert reader.errors["other"].code == 5


async def test_cancel_ends_one_request_silently(llm: LlmBench) -> None:
    reader = Reader()
    async with open_stream(llm.stub.GenerateMany()) as call:
        await call.write(start("held", tokens(HOLD)))
        await call.write(start("long", tokens(COUNT, stop=limit(2000))))
        await until(lambda: len(llm.seen(Submit)) == 2)
        await call.write(cancel("held"))
        await call.write(cancel("never seen"))
        await call.done_writing()
        async for message in messages(call):
            reader.take(message)
    assert reader.kinds == {"long": ORDER}
    assert len(llm.seen(Cancel)) == 1


async def test_a_prompt_that_takes_long_to_read_holds_nobody_up(
    llm: LlmBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is forgotten when it is cancelled meanwhile."""
    encode, gate = PromptEncoder.encode, asyncio.Event()

    async def held(self: PromptEncoder, prompt: object, **options: bool) -> EncodedPrompt:
        if isinstance(prompt, str):
            await gate.wait()
        return await encode(self, prompt, **options)

    monkeypatch.setattr(PromptEncoder, "encode", held)
    reader = Reader()
    long = generate_pb2.GenerateRequest(text="long", stop=limit(2))
    async with open_stream(llm.stub.GenerateMany()) as call:
        await call.write(start("forgotten", long))
        await call.write(start("long", long))
        await call.write(cancel("forgotten"))
        await call.write(start("short", tokens(COUNT, stop=limit(2))))
        while reader.kinds.get("short", [""])[-1] != "completed":
            reader.take(await call.read())
        assert list(reader.kinds) == ["short"]
        gate.set()
        await call.done_writing()
        while (message := await call.read()) is not grpc.aio.EOF:
            reader.take(message)
    assert reader.kinds == {"short": ORDER, "long": ORDER}


SCORED = generate_pb2.OutputParams(prompt_logprobs=1)


async def test_large_scores_are_spread_over_messages(
    llm: LlmBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiplex, "_STEP_BYTES", 1000)
    scored = tokens(COUNT, *range(100, 140), output=SCORED, stop=limit(2))
    reader = await run(llm, *(start(f"r{number}", scored) for number in range(6)))
    assert reader.kinds == {f"r{number}": ORDER for number in range(6)}


async def test_scores_that_fit_no_message_fail_their_request_alone(
    llm: LlmBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiplex, "MESSAGE_LIMIT", multiplex._STEP_BYTES + 1000)
    scored = tokens(COUNT, *range(100, 140), output=SCORED, stop=limit(2))
    reader = await run(llm, start("plain", tokens(COUNT, stop=limit(9))), start("large", scored))
    assert reader.kinds == {"plain": ORDER, "large": ["error"]}
    assert from_status(reader.errors["large"]).reason == "TOO_LARGE"


def test_text_behind_an_event_of_its_request_does_not_overtake_it() -> None:
    message = generate_pb2.GenerateManyResponse()
    multiplex._append(message, "a", [Delta(0, "one", 1), Delta(1, "two", 1)])
    multiplex._append(message, "b", [Delta(0, "", 1, reasoning="so"), Delta(0, "three", 1)])
    assert list(message.texts) == ["one", "two"]
    assert [item.response.delta.text for item in message.events] == ["", "three"]


async def test_a_dead_stream_cancels_all_its_requests(llm: LlmBench) -> None:
    call = llm.stub.GenerateMany()
    for number in range(5):
        await call.write(start(f"r{number}", tokens(COUNT, stop=limit(4000))))
    await call.read()
    await until(lambda: len(llm.seen(Submit)) == 5)
    call.cancel()
    await until(lambda: len(llm.seen(Cancel)) == 5)


async def test_scope_of_each_request_reaches_the_engine(llm: LlmBench) -> None:
    request = start(
        "r",
        tokens(COUNT, stop=limit(2)),
        timeout=Duration(seconds=9),
        tenant="acme",
        request_id="req-7",
        traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
        batch=True,
    )
    await run(llm, request)
    submit = llm.seen(Submit)[0]
    assert (submit.tenant, submit.interactive) == ("acme", False)
    assert submit.request_id.startswith("req-7")
    assert submit.trace.startswith("00-aaaa")
    assert 0 < submit.deadline - time.time() < 10


@pytest.mark.parametrize(
    ("requests", "field"),
    [
        ([start("", tokens(COUNT))], "start.stream_id"),
        ([start("x" * 129, tokens(COUNT))], "start.stream_id"),
        ([start("a", tokens(COUNT), request_id="x" * 129)], "start.request_id"),
        ([start("a", tokens(HOLD)), start("a", tokens(HOLD))], "start.stream_id"),
        ([generate_pb2.GenerateManyRequest()], "action"),
    ],
)
async def test_protocol_errors_end_the_stream(llm: LlmBench, requests: list, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await run(llm, *requests)
    assert caught.value.field == field
    await until(lambda: llm.front.measures().waiting == 0)


async def test_a_reused_id_is_free_after_its_end(llm: LlmBench) -> None:
    reader = Reader()
    async with open_stream(llm.stub.GenerateMany()) as call:
        for _ in range(2):
            await call.write(start("same", tokens(SAY, 100)))
            while reader.kinds.get("same", [""])[-1] != "completed":
                reader.take(await call.read())
            reader.kinds.clear()
        await call.done_writing()


async def test_a_drain_ends_the_stream_when_its_work_is_done(llm: LlmBench) -> None:
    reader = Reader()
    async with open_stream(llm.stub.GenerateMany()) as call:
        await call.write(start("running", tokens(COUNT, stop=limit(300))))
        reader.take(await call.read())
        llm.lifecycle.draining()
        await call.write(start("late", tokens(COUNT)))
        while (message := await call.read()) is not grpc.aio.EOF:
            reader.take(message)
    assert reader.kinds["running"] == ORDER
    assert reader.kinds["late"] == ["error"]
    assert reader.errors["late"].code == 14
