"""An hour of conversation in fake time leaves bounded state; a step costs microseconds."""

from __future__ import annotations

import time

from antiphon_gateway.realtime import events, inputs, session
from antiphon_gateway.realtime.settings import RealtimeSettings
from realtime_bench import Bench

FRAME = events.AppendAudio(audio=bytes(9600))
"""200 ms."""


def feed(bench: Bench, event: inputs.Input) -> None:
    bench.commands = session.step(bench.state, event, bench.now)


def spoken_turn(bench: Bench) -> None:
    state = bench.state
    start = state.buffer.end_ms - state.epoch_start_ms
    bench.utterance += 1
    feed(bench, inputs.SpeechBegan(state.epoch, bench.utterance, start))
    for _ in range(10):
        feed(bench, FRAME)
    feed(bench, inputs.SpeechEnded(state.epoch, bench.utterance, start + 1500))
    feed(bench, inputs.Transcript(state.epoch, bench.utterance, "tell me more", ""))
    response = bench.plan.response_id
    for _ in range(20):
        feed(bench, inputs.TextProduced(response, " word", 1))
        feed(bench, inputs.AudioProduced(response, bytes(4800), 2400))
    feed(bench, inputs.TextEnded(response, False, None))
    feed(bench, inputs.ReplyEnded(response))


def test_an_hour_of_turns_is_bounded() -> None:
    bench = Bench(RealtimeSettings(max_session_seconds=9000, input_idle_seconds=9000))
    feed(bench, FRAME)
    for _minute in range(60):
        for _second in range(60):
            for _ in range(5):
                feed(bench, FRAME)
            bench.now += 1
            feed(bench, inputs.Tick())
        for _ in range(4):
            spoken_turn(bench)
    state = bench.state
    assert not state.closed
    assert len(state.conversation) == 480
    assert len(state.buffer) < 12 * 48_000
    assert state.conversation.kept_audio_bytes <= 16 * 1024 * 1024
    assert not state.pending and not state.utterances and not state.responses
    assert not state.loose_pieces and not state.commands and state.turn is None


def test_a_step_costs_microseconds() -> None:
    bench = Bench()
    feed(bench, FRAME)
    began = time.process_time()
    for _ in range(5000):
        feed(bench, FRAME)
    append = (time.process_time() - began) / 5000
    assert append < 100e-6, f"{append * 1e6:.1f} us an append"
