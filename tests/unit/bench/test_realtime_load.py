"""The realtime load generator: its player, its reading of events, its figures, and a run."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import numpy as np
import pytest
from antiphon_cli.talk.audio import REALTIME_RATE, to_pcm16

from bench.realtime.caller import Manners
from bench.realtime.player import Player
from bench.realtime.run import Load, run
from bench.realtime.summary import summarise
from bench.realtime.turns import Question, Turn, TurnReader

sys.path.insert(0, str(Path(__file__).parents[2] / "rpc" / "realtime"))
sys.path.insert(0, str(Path(__file__).parents[1] / "realtime"))

from realtime_gateway import RealtimeGateway


def tone(seconds: float, quiet: float = 0.0) -> np.ndarray:
    samples = np.full(round(seconds * REALTIME_RATE), 0.5, np.float32)
    samples[: round(quiet * REALTIME_RATE)] = 0.0
    return samples


def test_the_player_starts_with_a_tenth_of_a_second_and_tells_the_first_audible_sample() -> None:
    player = Player()
    player.push(tone(0.06, quiet=0.04), 1.0)
    assert player.started_at is None
    player.push(tone(0.06), 1.2)
    assert player.started_at == 1.2
    assert player.audible_at == pytest.approx(1.24)
    assert player.ends_at() == pytest.approx(1.32)


def test_a_late_piece_is_a_gap_until_the_player_plays_again() -> None:
    player = Player()
    player.push(tone(0.2), 1.0)
    player.push(tone(0.1), 1.1)
    assert player.gaps == []
    player.push(tone(0.05), 1.5)
    player.push(tone(0.05), 1.6)
    assert player.gaps == [pytest.approx(0.3)]
    player.push(tone(0.01), 2.0)
    player.end(2.1)
    assert player.gaps == [pytest.approx(0.3), pytest.approx(0.4)]


def test_silence_before_the_first_sound_spans_pieces() -> None:
    player = Player()
    player.push(tone(0.2, quiet=0.2), 1.0)
    assert player.audible_at is None
    player.push(tone(0.1, quiet=0.05), 1.1)
    assert player.audible_at == pytest.approx(1.25)


def read(reader: TurnReader, now: float, kind: str, **fields: object) -> None:
    reader.read({"type": kind, **fields}, now)


def delta(seconds: float) -> str:
    return base64.b64encode(to_pcm16(tone(seconds))).decode()


def answered(reader: TurnReader, turn: Turn, at: float, response: str) -> None:
    """A turn's events up to its first audio."""
    reader.current = turn
    turn.speech_end = at
    read(reader, at - 1, "input_audio_buffer.speech_started")
    read(reader, at + 0.5, "input_audio_buffer.speech_stopped", item_id=f"item-{response}")
    read(reader, at + 0.6, "response.created", response={"id": response})
    fields = {"response_id": response}
    read(reader, at + 0.7, "response.output_audio_transcript.delta", delta="Hi", **fields)
    read(reader, at + 0.8, "response.output_audio.delta", delta=delta(0.2), **fields)


def test_legs_and_the_time_that_an_interrupted_reply_went_on() -> None:
    reader = TurnReader()
    question = Question("q", tone(0.5), "hello there")
    first, second = Turn(question, 0), Turn(question, 0)
    answered(reader, first, 10.0, "resp_1")
    reader.current = second
    read(reader, 12.0, "input_audio_buffer.speech_started")
    read(reader, 12.03, "response.output_audio.delta", delta=delta(0.1), response_id="resp_1")
    read(reader, 12.04, "response.done", response={"id": "resp_1", "status": "cancelled"})
    kind = "conversation.item.input_audio_transcription.completed"
    read(reader, 12.1, kind, item_id="item-resp_1", transcript="hello there")
    first.outcome = "interrupted"
    result = summarise([first, second], reader.errors)
    legs = {name: row["p50"] for name, row in result["legs_ms"].items() if row is not None}
    assert legs["stopped"] == pytest.approx(500)
    assert legs["created"] == pytest.approx(100)
    assert legs["first_text"] == pytest.approx(100)
    assert legs["first_audio"] == pytest.approx(100)
    assert legs["stopped_to_first_audio"] == pytest.approx(300)
    assert legs["speech_end_to_audible"] == pytest.approx(800)
    assert result["interruptions_ms"]["max"] == pytest.approx(30)
    assert result["turns"] == {
        "asked": 2,
        "completed": 0,
        "interrupted": 1,
        "failed": 0,
        "lost": 1,
    }
    assert result["word_error_rate"] == 0.0


def test_a_question_that_is_taken_for_two_is_a_split_and_its_half_reply_does_not_count() -> None:
    reader = TurnReader()
    turn = Turn(Question("q", tone(0.5)), 0)
    answered(reader, turn, 10.0, "resp_1")
    read(reader, 11.0, "input_audio_buffer.speech_started")
    read(reader, 11.1, "response.done", response={"id": "resp_1", "status": "cancelled"})
    assert (turn.splits, turn.reply, turn.heard_out()) == (1, None, False)


async def test_sessions_of_a_real_gateway_are_answered_and_interrupted() -> None:
    gateway = RealtimeGateway()
    await gateway.start()
    gateway.script.words = tuple(f" word {i}," for i in range(8))
    question = Question("q", np.concatenate([tone(0.3), tone(0.3, quiet=0.3)]), "what time is it")
    quick = {"silence_duration_ms": 200, "type": "server_vad"}
    session = {"audio": {"input": {"turn_detection": quick, "transcription": {}}}}
    try:
        calm = Load(
            gateway.socket_url,
            [question],
            sessions=2,
            turns=1,
            rate=50.0,
            manners=Manners(pause_s=0.0, session=session),
        )
        done = await run(calm)
        gateway.script.word_delay = 0.2
        manners = Manners(pause_s=0.0, interrupt_after_s=0.1, session=session)
        hasty = await run(Load(gateway.socket_url, [question], turns=2, manners=manners))
    finally:
        await gateway.stop()
    result = summarise(done.turns, done.event_errors)
    assert result["turns"]["completed"] == 2 and result["event_errors"] == {}
    assert result["word_error_rate"] == 0.0 and result["continuity"]["share"] == 1.0
    assert all(row is not None for row in result["legs_ms"].values())
    assert [turn.outcome for turn in hasty.turns] == ["interrupted", "completed"]
    cuts = summarise(hasty.turns, [])["interruptions_ms"]
    assert cuts["count"] == 1 and cuts["max"] < 1000


async def test_a_server_that_is_not_there_fails_every_turn() -> None:
    question = Question("q", tone(0.1))
    done = await run(Load("ws://127.0.0.1:9/v1/realtime", [question], turns=2))
    assert [turn.outcome for turn in done.turns] == ["failed", "failed"]
    assert "refused" in done.turns[0].error.lower() or "connect" in done.turns[0].error.lower()


def test_a_load_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to say"):
        Load("ws://x", []).check()
    with pytest.raises(ValueError, match="rate"):
        Load("ws://x", [Question("q", tone(0.1))], rate=0.0).check()
