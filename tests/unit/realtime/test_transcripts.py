"""Transcription sessions, live deltas and log-probabilities."""

from __future__ import annotations

import base64

import pytest
from antiphon_gateway.domain.recognition import Diarization, TranscriptSegment
from antiphon_gateway.realtime import commands, inputs, session
from antiphon_gateway.realtime.config import SessionType
from antiphon_gateway.realtime.errors import ProtocolError
from antiphon_gateway.realtime.events import Logprob
from antiphon_gateway.realtime.settings import RealtimeSettings
from antiphon_gateway.realtime.state import Served
from realtime_bench import SECOND, Bench, kinds, of

DELTA = "conversation.item.input_audio_transcription.delta"
COMPLETED = "conversation.item.input_audio_transcription.completed"
SEGMENT = "conversation.item.input_audio_transcription.segment"
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
    assert (config.prompt, config.keywords) == ("A call.", ("Antiphon", "Envoy"))
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


def diarizing(bench: Bench) -> Bench:
    bench.update(audio={"input": {"transcription": {"model": "gpt-4o-transcribe-diarize"}}})
    return bench


def heard(bench: Bench, *segments: TranscriptSegment, tag: str = "") -> list[dict]:
    text = "".join(segment.text for segment in segments)
    epoch, utterance = bench.state.epoch, bench.utterance
    return bench.feed(inputs.Transcript(epoch, utterance, text, tag, segments=segments))


@pytest.mark.parametrize("kind", ["realtime", "transcription"])
def test_segments_say_who_speaks_in_an_item(kind: SessionType) -> None:
    bench = diarizing(Bench(kind=kind))
    bench.append(1.0)
    assert opened(bench).config.diarization == Diarization()
    bench.client("input_audio_buffer.clear")
    assert bench.state.epoch_start_ms == 1000
    bench.append(1.5)
    bench.start_speech(200)
    sent = bench.stop_speech(1200)
    item_id = of(sent, "input_audio_buffer.committed")[0]["item_id"]
    sent = heard(
        bench,
        TranscriptSegment(" Hello.", 250, 700, speaker="Ann"),
        TranscriptSegment(" ", 700, 710),
        TranscriptSegment(" Hi.", 710, 1200, speaker=""),
    )
    segments = of(sent, SEGMENT)
    assert [(s["text"], s["speaker"], s["start"], s["end"]) for s in segments] == [
        ("Hello.", "Ann", 0.05, 0.5),
        ("Hi.", "", 0.51, 1.0),
    ]
    assert {(s["item_id"], s["content_index"]) for s in segments} == {(item_id, 0)}
    assert kinds(sent).index(COMPLETED) > kinds(sent).index(SEGMENT)


def test_segments_of_a_forced_cut_belong_to_the_item_that_is_committed(scribe: Bench) -> None:
    diarizing(scribe)
    scribe.update(audio={"input": {"turn_detection": None}})
    scribe.append(2.0)
    heard(scribe, TranscriptSegment(" One.", 0, 1000, speaker="A"))
    item_id = scribe.client("input_audio_buffer.commit")[0]["item_id"]
    sent = heard(scribe, TranscriptSegment(" Two.", 1000, 2000, speaker="B"), tag=item_id)
    assert [(s["speaker"], s["start"]) for s in of(sent, SEGMENT)] == [("A", 0.0), ("B", 1.0)]
    scribe.append(1.0)
    item_id = scribe.client("input_audio_buffer.commit")[0]["item_id"]
    sent = heard(scribe, TranscriptSegment(" Three.", 2000, 3000, speaker="A"), tag=item_id)
    assert [(s["speaker"], s["start"], s["end"]) for s in of(sent, SEGMENT)] == [("A", 0.0, 1.0)]


def test_an_item_that_is_heard_alone_has_its_segments(bench: Bench) -> None:
    bench.update(optional_events=[SEGMENT])
    item = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_audio", "audio": base64.b64encode(bytes(SECOND)).decode()}],
    }
    bench.client("conversation.item.create", item=item)
    alone = [c for c in bench.commands if isinstance(c, commands.TranscribeItem)][-1]
    assert alone.config.diarization == Diarization()
    segment = TranscriptSegment(" Hi.", 100, 900, speaker="A")
    sent = bench.feed(inputs.ItemTranscribed(alone.item_id, "Hi.", segments=(segment,)))
    assert [(s["speaker"], s["start"], s["end"]) for s in of(sent, SEGMENT)] == [("A", 0.1, 0.9)]


def test_nobody_is_told_who_speaks_without_asking(bench: Bench) -> None:
    bench.append(1.5)
    bench.start_speech(0)
    bench.stop_speech(1000)
    assert opened(bench).config.diarization is None
    assert SEGMENT not in kinds(heard(bench, TranscriptSegment(" Hi.", 0, 900, speaker="A")))


@pytest.mark.parametrize(
    "change",
    [
        {"audio": {"input": {"transcription": {"model": "gpt-4o-transcribe-diarize"}}}},
        {"audio": {"input": {"transcription": {}}}, "optional_events": [SEGMENT]},
    ],
)
def test_a_recogniser_that_cannot_tell_is_refused(change: dict) -> None:
    undiarized = frozenset({"", "gpt-4o-transcribe-diarize"})
    bench = Bench(served=Served(undiarized=undiarized))
    error = bench.update(**change)[0]["error"]
    assert error["code"] == "unsupported_parameter"
    assert error["param"] == "session.audio.input.transcription.model"
    with pytest.raises(ProtocolError, match="who speaks"):
        session.new_state(
            token="t",
            model="small",
            settings=RealtimeSettings(),
            served=Served(undiarized=undiarized),
            wall_seconds=0,
            preset=change,
        )


def test_half_a_sample_belongs_to_the_next_item(bench: Bench) -> None:
    bench.update(audio={"input": {"turn_detection": None}})
    data = bytes(range(251)) * 100

    for piece in (data[: SECOND // 8 + 1], data[SECOND // 8 + 1 : 2 * (SECOND // 8) + 2]):
        encoded = base64.b64encode(piece).decode()
        bench.client("input_audio_buffer.append", audio=encoded)
        bench.client("input_audio_buffer.commit")
    first, second = [bytes(entry.audio) for entry in bench.state.conversation]
    assert len(first) % 2 == len(second) % 2 == 0
    assert first + second == data[: len(first) + len(second)]
