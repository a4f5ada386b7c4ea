"""Replies prepared in a pause: used on exactly what they were prepared on, else never seen."""

from __future__ import annotations

import pytest
from antiphon_gateway.realtime import commands, inputs, session
from realtime_bench import Bench, kinds, of

PAUSE = 200
SILENCE = 500


@pytest.fixture
def bench() -> Bench:
    """A session that prepares replies after 200 ms of the 500 that end a turn."""
    made = Bench()
    made.update(speculative_ms=PAUSE)
    return made


def pause(bench: Bench, text: str = "what time is it") -> str:
    """One second of speech and a short silence; the id of the prepared reply."""
    start = bench.state.buffer.end_ms
    bench.append(1.2)
    bench.start_speech(start)
    assert bench.stop_speech(start + 1000) == []
    assert bench.transcript(text) == []
    return bench.plan.response_id


def last(bench: Bench, seconds: float = 0.3) -> list[dict]:
    """The silence goes on."""
    bench.now += seconds
    return bench.append(seconds)


def of_kind(bench: Bench, kind: type) -> list:
    return [command for command in bench.commands if isinstance(command, kind)]


def test_the_recogniser_is_told_the_short_silence(bench: Bench) -> None:
    bench.append(0.1)
    assert of_kind(bench, commands.OpenRecognizer)[-1].config.turn_detection.silence_ms == PAUSE


def test_a_pause_that_lasts_flushes_the_prepared_reply_in_order(bench: Bench) -> None:
    response = pause(bench)
    assert bench.plan.held
    assert bench.feed(inputs.PromptAccepted(response, 7)) == []
    assert bench.feed(inputs.TextProduced(response, "Noon.", 2)) == []
    assert bench.feed(inputs.AudioProduced(response, bytes(960), 480)) == []
    sent = last(bench)
    assert kinds(sent) == [
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
    ]
    assert of(sent, "response.created")[0]["response"]["id"] == response
    assert sent[0]["audio_end_ms"] == 1000
    assert of_kind(bench, commands.ReleaseResponse) == [commands.ReleaseResponse(response)]
    assert commands.CountSpeculation("used", 2) in bench.commands
    done = bench.end()[-1]["response"]
    assert done["status"] == "completed" and done["usage"]["input_tokens"] == 7
    assert len(of_kind(bench, commands.StartResponse)) == 1


def test_the_turn_also_ends_by_the_clock_alone_once_the_audio_is_there(bench: Bench) -> None:
    pause(bench)
    assert bench.append(0.4) == []
    assert session.deadline(bench.state) == pytest.approx(bench.now + 0.3)
    bench.now += 0.3
    assert kinds(bench.feed(inputs.Tick()))[0] == "input_audio_buffer.speech_stopped"


def test_resumed_speech_drops_it_without_any_event(bench: Bench) -> None:
    response = pause(bench, "what time")
    bench.feed(inputs.TextProduced(response, "Noon.", 2))
    bench.append(0.4)
    assert bench.start_speech(1400) == [], "no second speech_started"
    assert bench.commands[-2:] == [
        commands.StopResponse(response),
        commands.CountSpeculation("dropped", 2),
    ]
    assert bench.feed(inputs.AudioProduced(response, bytes(960), 480)) == []
    bench.append(0.8)
    assert bench.stop_speech(2000) == []
    bench.transcript("is it in Rome")
    sent = last(bench, 0.6)
    transcript = of(sent, "conversation.item.input_audio_transcription.completed")[0]
    assert transcript["transcript"] == "what time is it in Rome"
    assert of(sent, "response.created")[0]["response"]["id"] != response
    assert len(of(bench.events, "input_audio_buffer.speech_started")) == 1


def test_at_most_three_a_turn(bench: Bench) -> None:
    for _ in range(5):
        pause(bench, "well")
        bench.append(0.1)
    assert len(of_kind(bench, commands.StartResponse)) == 3


def test_none_above_the_load(bench: Bench) -> None:
    bench.feed(inputs.Tick(0.9))
    bench.append(1.2)
    bench.start_speech(0)
    bench.stop_speech(1000)
    bench.transcript("hello")
    assert not of_kind(bench, commands.StartResponse)
    last(bench)
    assert len(of_kind(bench, commands.StartResponse)) == 1 and not bench.plan.held


@pytest.mark.parametrize("change", ["instructions", "item", "failure"])
def test_what_changed_meanwhile_is_answered_anew(bench: Bench, change: str) -> None:
    response = pause(bench)
    bench.feed(inputs.TextProduced(response, "Noon.", 1))
    if change == "instructions":
        bench.update(instructions="Whisper.")
    elif change == "item":
        bench.say("by the way")
    else:
        bench.feed(inputs.ReplyFailed(response, bench_failure()))
    sent = last(bench)
    created = of(sent, "response.created")[0]["response"]["id"]
    assert created != response and bench.plan.response_id == created and not bench.plan.held
    assert commands.StopResponse(response) in bench.commands
    assert "response.output_audio_transcript.delta" not in kinds(sent)


@pytest.mark.parametrize("end", ["clear", "commit", "mode"])
def test_a_turn_that_ends_otherwise_takes_it_along(bench: Bench, end: str) -> None:
    response = pause(bench)
    if end == "mode":
        bench.update(audio={"input": {"turn_detection": None}})
    else:
        bench.client(f"input_audio_buffer.{end}")
    assert bench.state.speculation is None
    assert commands.StopResponse(response) in bench.commands


def test_a_late_transcript_is_waited_for_after_the_turn(bench: Bench) -> None:
    bench.append(1.2)
    bench.start_speech(0)
    bench.stop_speech(1000)
    sent = last(bench)
    assert kinds(sent)[-1] == "response.created"
    assert not of_kind(bench, commands.StartResponse)
    bench.transcript("hello")
    assert len(of_kind(bench, commands.StartResponse)) == 1


def bench_failure() -> inputs.BackendFailure:
    return inputs.BackendFailure("server_error", "bad_gateway", "died")
