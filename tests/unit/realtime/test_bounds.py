"""An hour of conversation in fake time leaves bounded state; a step costs microseconds."""

from __future__ import annotations

import gc
import sys
import time
from types import FunctionType, MethodType, ModuleType

import pytest
from antiphon_gateway.realtime import commands, events, inputs, item_edits, session
from antiphon_gateway.realtime.errors import BackendFailure
from antiphon_gateway.realtime.send_queue import MAX_QUEUED_BYTES, QueueFull, SendQueue
from antiphon_gateway.realtime.settings import RealtimeSettings
from realtime_bench import Bench, of

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


def minutes(bench: Bench, count: int, turns: int) -> None:
    """Minutes of input audio, each with turns at its end."""
    for _minute in range(count):
        for _second in range(60):
            for _ in range(5):
                feed(bench, FRAME)
            bench.now += 1
            feed(bench, inputs.Tick())
        for _ in range(turns):
            spoken_turn(bench)


def held_bytes(root: object) -> int:
    """Bytes of all objects that a state alone can reach."""
    shared = (type, ModuleType, FunctionType, MethodType)
    seen: set[int] = set()
    waiting: list[object] = [root]
    total = 0
    while waiting:
        item = waiting.pop()
        if id(item) not in seen and not isinstance(item, shared):
            seen.add(id(item))
            total += sys.getsizeof(item)
            waiting += gc.get_referents(item)
    return total


def long_bench() -> Bench:
    bench = Bench(RealtimeSettings(max_session_seconds=9000, input_idle_seconds=9000))
    feed(bench, FRAME)
    return bench


def test_an_hour_of_turns_is_bounded() -> None:
    bench = long_bench()
    minutes(bench, 30, turns=4)
    before = held_bytes(bench.state) - bench.state.conversation.kept_audio_bytes
    minutes(bench, 30, turns=4)
    after = held_bytes(bench.state) - bench.state.conversation.kept_audio_bytes
    assert (after - before) * 2 < 1024 * 1024, f"{(after - before) * 2} bytes an hour"
    state = bench.state
    assert not state.closed
    assert len(state.conversation) == 480
    assert len(state.buffer) < 12 * 48_000
    assert state.conversation.kept_audio_bytes <= 16 * 1024 * 1024
    assert not state.pending and not state.utterances and not state.responses
    assert not state.loose_pieces and not state.commands and state.turn is None


def test_an_hour_of_silence_leaves_nothing() -> None:
    bench = long_bench()
    minutes(bench, 60, turns=0)
    state = bench.state
    assert not state.closed and not len(state.conversation)
    assert len(state.buffer) < 12 * 48_000
    assert state.buffer.received == state.buffer.dropped + len(state.buffer)
    spoken_turn(bench)
    assert len(state.conversation) == 2 and not state.pending


def test_items_are_bounded_whoever_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_ITEMS", 10)
    monkeypatch.setattr(item_edits, "MAX_ITEMS", 10)
    bench = Bench()
    for _ in range(8):
        bench.turn("hello")
        bench.reply("yes")
    assert len(bench.state.conversation) == 10
    assert len(of(bench.events, "conversation.item.deleted")) == 6


def test_an_item_that_is_being_written_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_ITEMS", 4)
    monkeypatch.setattr(item_edits, "MAX_ITEMS", 4)
    bench = Bench()
    bench.client("response.create")
    bench.reply("well", end=False)
    writing = next(iter(bench.state.conversation)).id
    for _ in range(6):
        bench.say("more")
    assert writing in bench.state.conversation and len(bench.state.conversation) == 4
    bench.end()


def test_the_send_queue_is_bounded_by_bytes_and_drops_nothing() -> None:
    queue = SendQueue()
    big = events.Error(error=events.ErrorBody("t", "c", "x" * 1_000_000, None, None))
    with pytest.raises(QueueFull):
        for _ in range(100):
            queue.put(commands.Send(big))
    assert queue.queued_bytes <= MAX_QUEUED_BYTES
    count = len(queue)
    assert sum(len(queue.pop().data) for _ in range(count)) > 40_000_000
    assert queue.queued_bytes == 0


def test_a_spent_quota_closes_with_the_policy_code(bench: Bench) -> None:
    bench.append(1)
    spent = BackendFailure("insufficient_quota", "insufficient_quota", "spent")
    sent = bench.feed(inputs.RecognizerFailed(bench.state.epoch, spent))
    assert sent[0]["error"]["code"] == "insufficient_quota"
    assert isinstance(bench.commands[-1], commands.Close) and bench.commands[-1].code == 1008


def test_a_step_costs_microseconds() -> None:
    bench = Bench()
    feed(bench, FRAME)
    began = time.process_time()
    for _ in range(5000):
        feed(bench, FRAME)
    append = (time.process_time() - began) / 5000
    assert append < 100e-6, f"{append * 1e6:.1f} us an append"
