"""Transcription sessions, live deltas and log-probabilities."""

from __future__ import annotations

import pytest
from antiphon_gateway.realtime import commands, inputs
from antiphon_gateway.realtime.events import Logprob
from realtime_bench import SECOND, Bench, kinds, of

DELTA = "conversation.item.input_audio_transcription.delta"
COMPLETED = "conversation.item.input_audio_transcription.completed"
LOGPROBS = ["item.input_audio_transcription.logprobs"]


@pytest.fixture
def scribe() -> Bench:
    """An opened transcription session."""
    return Bench(kind="transcription")


def opened(bench: Bench) -> commands.OpenRecognizer:
    return [c for c in bench.commands if isinstance(c, commands.OpenRecognizer)][-1]


def test_it_opens_with_its_own_shape(scribe: Bench) -> None:
    session = scribe.events[0]["session"]
    assert set(session) == {"type", "id", "object", "expires_at", "audio", "include"}
    assert session["type"] == "transcription"
    assert session["object"] == "realtime.transcription_session"
    assert set(session["audio"]) == {"input"}
    assert session["audio"]["input"]["transcription"] is not None


def test_a_turn_is_transcribed_and_not_answered(scribe: Bench) -> None:
    sent = scribe.turn("hello")
    assert kinds(sent)[-1] == COMPLETED
    assert "response.created" not in kinds(sent)
    assert of(sent, COMPLETED)[0]["usage"] == {"type": "duration", "seconds": 1.0}


def test_manual_commits_work(scribe: Bench) -> None:
    scribe.update(audio={"input": {"turn_detection": None}})
    scribe.append(0.5)
    sent = scribe.client("input_audio_buffer.commit")
    sent += scribe.transcript("hello", sent[0]["item_id"])
    assert of(sent, COMPLETED)[0]["transcript"] == "hello"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"instructions": "x"}, "session.instructions"),
        ({"audio": {"output": {"voice": "joe"}}}, "session.audio.output"),
        ({"tools": []}, "session.tools"),
    ],
)
def test_what_it_does_not_have_is_refused(scribe: Bench, change: dict, param: str) -> None:
    error = scribe.update(**change)[0]["error"]
    assert error["param"] == param and error["code"] == "unknown_parameter"


def test_responses_are_refused(scribe: Bench) -> None:
    error = scribe.client("response.create", event_id="e1")[0]["error"]
    assert error["code"] == "response_not_supported" and error["event_id"] == "e1"


def test_a_fresh_session_may_become_one_and_a_used_one_may_not(bench: Bench) -> None:
    session = bench.client("session.update", session={"type": "transcription"})[0]["session"]
    assert session["object"] == "realtime.transcription_session"
    back = bench.client("session.update", session={"type": "realtime"})[0]["session"]
    assert back["object"] == "realtime.session"
    bench.say("hi")
    error = bench.client("session.update", session={"type": "transcription"})[0]["error"]
    assert error["code"] == "cannot_update_session_type"


def test_keywords_and_language_reach_the_recogniser(scribe: Bench) -> None:
    scribe.update(
        audio={
            "input": {
                "transcription": {
                    "prompt": "A call.",
                    "keywords": ["Antiphon", "Envoy"],
                    "languages": ["de"],
                }
            }
        }
    )
    scribe.append(0.1)
    config = opened(scribe).config
    assert config.prompt == "A call.\nAntiphon, Envoy"
    assert config.language == "de" and config.partials


def test_certain_text_goes_out_before_the_final(scribe: Bench) -> None:
    scribe.append(1.5)
    scribe.start_speech(0)
    epoch, utterance = scribe.state.epoch, scribe.utterance
    assert scribe.feed(inputs.PartialText(epoch, utterance, "hello")) == []
    sent = scribe.stop_speech(1000)
    assert [e["delta"] for e in of(sent, DELTA)] == ["hello"]
    sent = scribe.feed(inputs.PartialText(epoch, utterance, "hello there"))
    assert [e["delta"] for e in sent] == [" there"]
    sent = scribe.transcript("hello there friend")
    assert kinds(sent) == [DELTA, COMPLETED]
    assert sent[0]["delta"] == " friend" and sent[1]["transcript"] == "hello there friend"


def test_a_final_that_differs_keeps_what_was_sent(scribe: Bench) -> None:
    scribe.append(1.5)
    scribe.start_speech(0)
    scribe.feed(inputs.PartialText(scribe.state.epoch, scribe.utterance, "hello"))
    scribe.stop_speech(1000)
    sent = scribe.transcript("Halo there")
    assert sent[-1]["transcript"] == "hello there"
    assert commands.CountFallback("transcript_deltas", "final_differs") in scribe.commands


def test_conversations_do_not_pay_for_partial_texts(bench: Bench) -> None:
    bench.append(0.1)
    assert not opened(bench).config.partials and not opened(bench).config.words


def test_log_probabilities_come_to_those_who_asked(bench: Bench) -> None:
    words = (Logprob("hello", [104], -0.1),)
    sent = bench.turn("hello")
    assert "logprobs" not in of(sent, COMPLETED)[0]
    bench.client("response.cancel")
    bench.update(include=LOGPROBS)
    assert opened(bench).config.words
    start = bench.state.buffer.end_ms
    bench.append(1.5)
    bench.start_speech(start - bench.state.epoch_start_ms)
    bench.stop_speech(start - bench.state.epoch_start_ms + 1000)
    sent = bench.feed(inputs.Transcript(bench.state.epoch, bench.utterance, "hello", "", words))
    expected = [{"token": "hello", "bytes": [104], "logprob": -0.1}]
    assert of(sent, COMPLETED)[0]["logprobs"] == expected


def test_half_a_sample_belongs_to_the_next_item(bench: Bench) -> None:
    bench.update(audio={"input": {"turn_detection": None}})
    data = bytes(range(251)) * 100
    import base64

    for piece in (data[: SECOND // 8 + 1], data[SECOND // 8 + 1 : 2 * (SECOND // 8) + 2]):
        encoded = base64.b64encode(piece).decode()
        bench.client("input_audio_buffer.append", audio=encoded)
        bench.client("input_audio_buffer.commit")
    first, second = [bytes(entry.audio) for entry in bench.state.conversation]
    assert len(first) % 2 == len(second) % 2 == 0
    assert first + second == data[: len(first) + len(second)]
