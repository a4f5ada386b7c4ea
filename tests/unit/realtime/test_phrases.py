"""Acknowledgement phrases: spoken from the cache when a call is complete, or left out."""

from __future__ import annotations

import pytest
from antiphon_gateway.realtime import commands, inputs
from realtime_bench import Bench, kinds, of

PHRASE = "One moment."
TOOL = {"type": "function", "name": "look", "ack_phrases": [PHRASE, "Let me see."]}
AUDIO = bytes(24_000)


def prepared(bench: Bench) -> list[commands.PreparePhrase]:
    return [command for command in bench.commands if isinstance(command, commands.PreparePhrase)]


def ready(bench: Bench) -> None:
    for asked in prepared(bench):
        assert bench.feed(inputs.PhraseReady(asked.text, asked.speech, AUDIO)) == []


def called(bench: Bench, *said: str) -> list[dict]:
    """A reply that calls the tool."""
    bench.say("look it up")
    bench.client("response.create")
    response = bench.plan.response_id
    for text in said:
        bench.feed(inputs.TextProduced(response, text, 1))
    bench.feed(inputs.CallProduced(response, 0, "call_1", "look", "{}", 1))
    sent = bench.feed(inputs.TextEnded(response, False, None))
    return sent + bench.feed(inputs.ReplyEnded(response))


@pytest.fixture
def bench() -> Bench:
    """A session with a tool whose phrases are ready."""
    made = Bench()
    made.update(tools=[TOOL])
    ready(made)
    return made


def test_a_phrase_follows_the_finished_call_in_the_same_response(bench: Bench) -> None:
    sent = called(bench)
    assert kinds(sent) == [
        "response.function_call_arguments.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        *["response.output_audio.delta"] * 3,
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    done = sent[-1]["response"]
    assert [item["type"] for item in done["output"]] == ["function_call", "message"]
    assert of(sent, "response.output_audio_transcript.done")[0]["transcript"] == PHRASE
    assert sum(len(c.event.delta) for c in bench.commands if _is_audio(c)) == len(AUDIO)


def test_the_model_does_not_know_of_it_and_phrases_take_turns(bench: Bench) -> None:
    called(bench)
    output = {"type": "function_call_output", "call_id": "call_1", "output": "42"}
    bench.client("conversation.item.create", item=output)
    sent = called(bench)
    assert of(sent, "response.output_audio_transcript.done")[0]["transcript"] == "Let me see."
    said = [part for message in bench.plan.chat.messages for part in message.parts]
    assert PHRASE not in said and "42" in said


def test_it_is_left_out_when_the_user_speaks(bench: Bench) -> None:
    bench.update(audio={"input": {"turn_detection": {"interrupt_response": False}}})
    bench.append(1)
    bench.start_speech(0)
    assert "response.output_audio.delta" not in kinds(called(bench))


def test_it_is_left_out_when_the_model_speaks_itself(bench: Bench) -> None:
    sent = called(bench, "I look it up.")
    assert len(sent[-1]["response"]["output"]) == 2
    assert PHRASE not in str(sent)


def test_it_is_left_out_while_it_is_not_ready() -> None:
    bench = Bench()
    bench.update(tools=[TOOL])
    assert "response.output_audio.delta" not in kinds(called(bench))
    assert commands.CountFallback("ack_phrase", "not_ready") in bench.commands


def test_another_format_is_prepared_anew(bench: Bench) -> None:
    before = len(prepared(bench))
    bench.update(audio={"output": {"format": {"type": "audio/pcmu"}}})
    assert len(prepared(bench)) == 2 * before
    stale = prepared(bench)[0]
    bench.feed(inputs.PhraseReady(stale.text, stale.speech, AUDIO))
    assert not bench.state.phrases[stale.text]
    bench.update(tools=[])
    assert not bench.state.phrases


def test_written_sessions_prepare_none() -> None:
    bench = Bench()
    bench.update(tools=[TOOL], output_modalities=["text"])
    assert not prepared(bench)


def test_too_many_are_refused(bench: Bench) -> None:
    many = [
        {**TOOL, "name": f"t{n}", "ack_phrases": [f"{n} {m}" for m in range(8)]} for n in range(5)
    ]
    assert bench.update(tools=many)[0]["error"]["param"] == "session.tools"


def _is_audio(command: object) -> bool:
    return isinstance(command, commands.Send) and command.audio is not None
