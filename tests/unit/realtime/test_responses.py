"""Responses: parameters, bounds, cancellation, tools, failures, usage."""

from __future__ import annotations

import pytest
from antiphon_gateway.realtime import commands, inputs
from antiphon_gateway.realtime.errors import BackendFailure
from antiphon_gateway.realtime.state import Served
from realtime_bench import FAILURE, Bench, kinds, message_texts, of

TOOL = {
    "type": "function",
    "name": "weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def ask(bench: Bench, **response: object) -> list[dict]:
    bench.say("hello")
    return bench.client("response.create", response=response)


def call(bench: Bench, index: int, call_id: str, *arguments: str) -> list[dict]:
    response = bench.plan.response_id
    sent = bench.feed(inputs.CallProduced(response, index, call_id, "weather", "", 1))
    for piece in arguments:
        sent += bench.feed(inputs.CallProduced(response, index, "", "", piece, 1))
    return sent


def test_a_written_reply_uses_text_events(bench: Bench) -> None:
    ask(bench, output_modalities=["text"])
    assert bench.plan.speech is None
    sent = bench.reply("Hel", "lo.")
    assert kinds(sent) == [
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert sent[2]["part"] == {"type": "text", "text": ""}
    assert sent[5]["text"] == "Hello."
    assert sent[-1]["response"]["output"][0]["content"] == [
        {"type": "output_text", "text": "Hello."}
    ]


def test_the_done_response_is_complete(bench: Bench) -> None:
    ask(bench, metadata={"topic": "greeting"}, max_output_tokens=9)
    done = bench.reply("Hi.")[-1]["response"]
    assert done["status"] == "completed" and done["status_details"] is None
    assert done["metadata"] == {"topic": "greeting"}
    assert done["max_output_tokens"] == 9
    assert done["conversation_id"] == bench.state.conversation_id
    assert done["usage"] == {
        "total_tokens": 12,
        "input_tokens": 7,
        "output_tokens": 5,
        "input_token_details": {
            "text_tokens": 7,
            "audio_tokens": 0,
            "image_tokens": 0,
            "cached_tokens": 3,
            "cached_tokens_details": {"text_tokens": 3, "audio_tokens": 0, "image_tokens": 0},
        },
        "output_token_details": {"text_tokens": 5, "audio_tokens": 0},
    }


def test_a_second_default_response_is_refused(bench: Bench) -> None:
    ask(bench)
    sent = bench.client("response.create")
    assert sent[0]["error"]["code"] == "conversation_already_has_active_response"


def test_a_create_right_after_a_cancel_works(bench: Bench) -> None:
    ask(bench)
    cancelled = bench.client("response.cancel")[-1]["response"]
    assert cancelled["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
    assert kinds(bench.client("response.create")) == ["response.created"]


def test_a_cancel_without_response_is_an_error_that_changes_nothing(bench: Bench) -> None:
    for fields in ({}, {"response_id": "resp_x"}):
        error = bench.client("response.cancel", **fields)[0]["error"]
        assert error["code"] == "response_cancel_not_active"
        assert error["message"].startswith("Cancellation failed")
    assert kinds(ask(bench))[-1] == "response.created"


def test_client_and_vad_cancel_in_one_tick_give_one_terminal(bench: Bench) -> None:
    ask(bench)
    bench.reply("Well", end=False)
    bench.append(1)
    sent = bench.client("response.cancel") + bench.start_speech(0)
    assert kinds(sent).count("response.done") == 1


def test_responses_outside_the_conversation(bench: Bench) -> None:
    bench.say("remember this")
    ids = []
    for index in range(4):
        sent = bench.client(
            "response.create",
            response={"conversation": "none", "input": [], "metadata": {"n": str(index)}},
        )
        ids.append(sent[0]["response"]["id"])
        assert sent[0]["response"]["conversation_id"] is None
        assert message_texts(bench.plan) == [("system", "Be brief.")]
    refused = bench.client("response.create", response={"conversation": "none"})
    assert refused[0]["error"]["code"] == "too_many_parallel_responses"
    assert kinds(bench.client("response.create")) == ["response.created"]
    bench.append(1)
    sent = bench.start_speech(0)
    assert len(of(sent, "response.done")) == 1, "barge-in leaves the others alone"
    sent = bench.client("response.cancel", response_id=ids[0])
    assert sent[-1]["response"]["id"] == ids[0]
    response = ids[1]
    bench.feed(inputs.TextProduced(response, "aside", 1))
    bench.feed(inputs.TextEnded(response, False, None))
    sent = bench.feed(inputs.ReplyEnded(response))
    assert not [kind for kind in kinds(sent) if kind.startswith("conversation")]
    assert sent[-1]["response"]["metadata"] == {"n": "1"}
    assert len(bench.state.conversation) == 1


def test_input_may_refer_to_items(bench: Bench) -> None:
    first = bench.say("one")[0]["item"]["id"]
    bench.say("two")
    bench.client(
        "response.create",
        response={
            "conversation": "none",
            "input": [
                {"type": "item_reference", "id": first},
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "three"}],
                },
            ],
        },
    )
    assert message_texts(bench.plan)[1:] == [("user", "one\nthree")]


@pytest.mark.parametrize(
    ("response", "param"),
    [
        ({"conversation": "other"}, "response.conversation"),
        ({"max_output_tokens": 0}, "response.max_output_tokens"),
        ({"output_modalities": ["audio", "text"]}, "response.output_modalities"),
        ({"tool_choice": {"type": "function", "name": "nope"}}, "response.tool_choice"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "response.input[0].id"),
        ({"temperature": 3}, "response.temperature"),
        ({"metadata": {"k": "v" * 513}}, "response.metadata[...]"),
        ({"surprise": 1}, "response.surprise"),
    ],
)
def test_wrong_parameters_name_the_field(bench: Bench, response: dict, param: str) -> None:
    error = bench.client("response.create", response=response, event_id="e1")[0]["error"]
    assert (error["param"], error["event_id"]) == (param, "e1")
    assert error["type"] == "invalid_request_error"


def test_a_cut_reply_is_incomplete(bench: Bench) -> None:
    ask(bench)
    bench.reply("And then", end=False)
    done = bench.end(cut=True)[-1]["response"]
    assert done["status"] == "incomplete"
    assert done["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
    assert done["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize("spoken", [(), ("Half a",)])
def test_a_backend_failure_is_a_failed_response_never_an_error(
    bench: Bench, spoken: tuple[str, ...]
) -> None:
    ask(bench)
    bench.reply(*spoken, end=False)
    sent = bench.feed(inputs.ReplyFailed(bench.plan.response_id, FAILURE))
    assert "error" not in kinds(sent)
    details = sent[-1]["response"]["status_details"]
    assert sent[-1]["response"]["status"] == details["type"] == "failed"
    assert details["error"]["message"] == "the worker died"
    assert kinds(bench.client("response.create")) == ["response.created"]


def test_a_too_long_prompt_is_shortened_and_tried_again(bench: Bench) -> None:
    for index in range(20):
        bench.say(f"remark number {index}")
        bench.client("response.create", response={"output_modalities": ["text"]})
        bench.reply("I see.")
    bench.client("response.create")
    before = message_texts(bench.plan)
    failure = BackendFailure("invalid_request_error", "context_length_exceeded", "too long")
    sent = bench.feed(inputs.ReplyFailed(bench.plan.response_id, failure, 100, 200))
    assert sent == []
    after = message_texts(bench.plan)
    assert after[0] == before[0] and after[-1] == before[-1]
    assert len(after) < 0.6 * len(before)
    assert kinds(bench.reply("Fine."))[-1] == "response.done"


def test_disabled_truncation_fails_instead(bench: Bench) -> None:
    bench.update(truncation="disabled")
    bench.say("one")
    ask(bench)
    failure = BackendFailure("invalid_request_error", "context_length_exceeded", "too long")
    sent = bench.feed(inputs.ReplyFailed(bench.plan.response_id, failure, 100, 200))
    assert sent[-1]["response"]["status_details"]["error"]["code"] == "context_length_exceeded"


def test_a_tool_call_on_the_wire(bench: Bench) -> None:
    bench.update(tools=[TOOL])
    ask(bench)
    assert bench.plan.chat.tools[0].name == "weather"
    sent = call(bench, 0, "call_1", '{"city":', '"Paris"}')
    sent += bench.end()
    assert kinds(sent) == [
        "response.output_item.added",
        "conversation.item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert sent[0]["item"]["arguments"] == "" and sent[0]["item"]["call_id"] == "call_1"
    done = of(sent, "response.function_call_arguments.done")[0]
    assert (done["name"], done["call_id"]) == ("weather", "call_1")
    assert done["arguments"] == '{"city":"Paris"}'
    assert sent[-1]["response"]["status"] == "completed"


def test_several_calls_are_several_items_and_outputs_come_in_a_burst(bench: Bench) -> None:
    bench.update(tools=[TOOL])
    ask(bench)
    for index in range(9):
        call(bench, index, f"call_{index}", "{}")
    done = bench.end()[-1]["response"]
    assert [item["call_id"] for item in done["output"]] == [f"call_{i}" for i in range(9)]
    for index in reversed(range(9)):
        bench.client(
            "conversation.item.create",
            item={
                "type": "function_call_output",
                "call_id": f"call_{index}",
                "output": str(index),
            },
        )
    bench.client("response.create")
    messages = bench.plan.chat.messages
    assert [m.tool_call_id for m in messages[-9:]] == [f"call_{i}" for i in range(9)]
    assert [m.parts[0] for m in messages[-9:]] == [str(i) for i in range(9)]


def test_speech_during_a_pending_call_shows_a_placeholder_then_the_late_output(
    bench: Bench,
) -> None:
    bench.update(tools=[TOOL])
    ask(bench)
    call(bench, 0, "call_1", "{}")
    bench.end()
    bench.turn("are you there")
    roles = [m.role.value for m in bench.plan.chat.messages]
    assert roles == ["system", "user", "assistant", "tool", "user"]
    assert bench.plan.chat.messages[3].parts == ('{"status":"pending"}',)
    bench.reply("Yes.")
    output = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
    bench.client("conversation.item.create", item=output)
    bench.client("response.create")
    assert bench.plan.chat.messages[3].parts == ("sunny",)


def test_a_barge_in_while_arguments_stream_leaves_the_call_not_executable(bench: Bench) -> None:
    bench.update(tools=[TOOL])
    ask(bench)
    call(bench, 0, "call_1", '{"ci')
    bench.append(1)
    sent = bench.start_speech(0)
    assert "response.function_call_arguments.done" not in kinds(sent)
    item = of(sent, "response.output_item.done")[0]["item"]
    assert item["status"] == "incomplete"
    bench.stop_speech(900)
    bench.transcript("stop")
    assert not any(m.tool_calls for m in bench.plan.chat.messages)


def test_an_output_without_call_is_refused(bench: Bench) -> None:
    output = {"type": "function_call_output", "call_id": "call_9", "output": "x"}
    sent = bench.client("conversation.item.create", item=output)
    assert sent[0]["error"]["code"] == "tool_call_not_found"


def test_a_running_response_is_unaffected_by_later_config(bench: Bench) -> None:
    bench.append(1.5)
    bench.start_speech(0)
    bench.stop_speech(1000)
    bench.update(instructions="Rhyme.", output_modalities=["text"], max_output_tokens=3)
    bench.transcript("hello")
    assert message_texts(bench.plan)[0] == ("system", "Be brief.")
    assert bench.plan.speech is not None and bench.plan.max_tokens == 120
    assert kinds(bench.reply("Hi."))[-1] == "response.done"


def test_unknown_voices_are_refused_and_the_voice_is_fixed_by_the_first_audio() -> None:
    bench = Bench(served=Served(voices=frozenset({"joe", "amy"})))
    error = bench.update(audio={"output": {"voice": "bob"}})[0]["error"]
    assert error["code"] == "voice_not_found" and "amy, joe" in error["message"]
    assert kinds(bench.update(audio={"output": {"voice": "amy"}})) == ["session.updated"]
    ask(bench)
    bench.reply("Hi.")
    error = bench.update(audio={"output": {"voice": "joe"}})[0]["error"]
    assert error["code"] == "cannot_update_voice"


def test_output_clear_ends_the_audio_and_counts_it_unheard(bench: Bench) -> None:
    ask(bench)
    bench.reply("One two ", "three", end=False)
    bench.play(0.2)
    bench.now += 0.1
    response = bench.plan.response_id
    sent = bench.client("output_audio_buffer.clear")
    assert kinds(sent) == ["output_audio_buffer.cleared"]
    assert sent[0]["response_id"] == response
    silence = next(c for c in reversed(bench.commands) if isinstance(c, commands.SilenceLane))
    assert bench.state.active and bench.state.active.generation >= silence.generation
    assert bench.feed(inputs.AudioProduced(response, bytes(4), 2)) == []
    assert kinds(bench.reply(" four")) == [
        "response.output_audio_transcript.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    bench.say("go on")
    ask(bench)
    assert message_texts(bench.plan)[2] == ("assistant", "One")


def test_draining_finishes_the_active_response_and_then_closes(bench: Bench) -> None:
    ask(bench)
    bench.feed(inputs.Drain())
    assert not bench.state.closed
    sent = bench.reply("Bye.")
    assert kinds(sent)[-1] == "response.done"
    assert bench.commands[-1] == commands.Close(1012, "the service is shutting down")
    assert bench.client("response.create") == []
