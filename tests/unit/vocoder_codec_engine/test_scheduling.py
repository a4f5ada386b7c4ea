"""Order, batches, back-pressure and failures of the codec process."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from antiphon_vocoder.codec_engine import runner
from antiphon_vocoder.codec_engine.scheduler import StepScheduler
from antiphon_vocoder.codec_engine.stream import StepKey
from antiphon_vocoder.codec_messages import CodecStats, Stage
from antiphon_vocoder.metrics import PlayerModel
from engine_bench import Bench, random_codes
from support.fake_codec import BAD_CODE, FRAME, NAN_CODE, FakeCodec, whole

FRAME_SECONDS = 0.08
STEADY = StepKey("fake", Stage.DECODE, 4)


def test_earliest_deadline_first_and_a_new_stream_waits_for_the_urgent() -> None:
    bench = Bench(FakeCodec(), rungs=(1,))
    running = bench.open(0)
    bench.push(running, random_codes(1, 40))
    bench.turns(1)
    bench.clock.now = 0.04
    new = bench.open(1)
    bench.push(new, random_codes(2, 40))
    # The running one runs dry 0.08 s after its first audio; the new one is due at 0.19.
    bench.turns(1)
    assert bench.steps[-1].hops[0].slot == running[0]
    bench.turns(1)
    assert bench.steps[-1].hops[0].slot == new[0]


def test_a_listener_whose_codes_come_just_in_time_is_due_when_it_runs_dry() -> None:
    bench = Bench(FakeCodec(), rungs=(1,))
    live, new = bench.open(0), bench.open(1)
    bench.push(live, random_codes(1, 1))
    bench.turns(1)
    bench.clock.now = 0.05
    bench.push(new, random_codes(2, 4))
    # 20 ms before it runs dry; the new one is due at 0.20.
    bench.clock.now = 0.06
    bench.push(live, random_codes(1, 2))
    bench.turns(1)
    assert bench.steps[-1].hops[0].slot == live[0]


def test_hops_of_one_kind_run_in_one_step() -> None:
    bench = Bench(FakeCodec(), slots=64)
    keys = [bench.open(slot) for slot in range(20)]
    for key in keys:
        bench.push(key, random_codes(key[0], 11))
    bench.turns()
    assert [(step.frames, len(step.hops), step.rows) for step in bench.steps] == [
        (1, 20, 64),
        (2, 20, 64),
        (4, 20, 64),
        (4, 20, 64),
    ]


def test_the_measured_times_choose_the_rung() -> None:
    slow = StepScheduler([1, 4, 16], {STEADY: {1: 0.125, 4: 0.5, 16: 2.0}}, 0.0)
    assert [slow.rung(STEADY, count) for count in (1, 3, 4, 5, 15, 16, 99)] == [
        1, 1, 4, 4, 4, 16, 16,
    ]  # fmt: skip
    flat = StepScheduler([1, 4, 16], {STEADY: {1: 0.01, 4: 0.011, 16: 0.012}}, 0.0)
    assert [flat.rung(STEADY, count) for count in (1, 3, 5, 17)] == [1, 4, 16, 16]
    unknown = StepScheduler([1, 4, 16], {}, 0.0)
    assert [unknown.rung(STEADY, count) for count in (3, 5)] == [4, 16]


def test_a_hop_waits_for_peers_only_while_all_can_afford_it() -> None:
    bench = Bench(FakeCodec(), peer_wait_seconds=0.002)
    first, second = bench.open(0), bench.open(1)
    bench.push(first, random_codes(1, 1))
    assert bench.loop.turn() == pytest.approx(0.002)
    assert bench.steps == []
    bench.push(second, random_codes(2, 1))
    assert bench.turns() == 1
    assert len(bench.steps[0].hops) == 2
    # Nobody comes: the wait ends.
    bench.push(first, random_codes(1, 2))
    assert bench.turns() == 0
    bench.clock.now += 0.0021
    assert bench.turns() == 1
    # A listener that is about to run dry does not wait at all.
    bench.clock.now = 3 * FRAME_SECONDS - 0.04
    bench.delivered(first, 3)
    bench.push(first, random_codes(1, 4))
    bench.clock.now += 0.09
    assert bench.turns() == 1
    # Nor does one that is alone.
    bench.close(second)
    bench.push(first, random_codes(1, 4))
    assert bench.turns() == 1


def test_unsent_audio_stops_its_own_stream_only() -> None:
    bench = Bench(FakeCodec(), lead_seconds=1.0)
    slow, other = bench.open(0), bench.open(1)
    bench.push(slow, random_codes(1, 200))
    bench.push(other, random_codes(2, 11))
    bench.turns()
    ahead = len(bench.heard(slow)) / FRAME
    assert 12 <= ahead < 12 + 4
    assert len(bench.heard(other)) == 11 * FRAME
    bench.delivered(slow, int(ahead))
    bench.turns()
    assert len(bench.heard(slow)) / FRAME > ahead + 11
    while (sent := len(bench.heard(slow)) // FRAME) < 199:
        bench.delivered(slow, sent)
        bench.turns()
    bench.flush(slow)
    bench.delivered(slow, sent)
    bench.turns()
    np.testing.assert_allclose(
        bench.heard(slow), whole(bench.codec, random_codes(1, 200)), atol=1e-6
    )


def test_overload_is_shared_fairly() -> None:
    bench = Bench(FakeCodec(), slots=16, rungs=(1, 4))
    keys = [bench.open(slot) for slot in range(16)]
    for key in keys:
        bench.push(key, random_codes(key[0], 400))
    for _ in range(200):
        bench.turns(1)
        # A step of four streams and four frames takes as long as two of them last: 2 x overload
        # and more for sixteen streams.
        bench.clock.now += 2 * 4 * FRAME_SECONDS / 4
    heard = [len(bench.heard(key)) for key in keys]
    assert min(heard) > 0
    # What differs is the start, not the share: two hops of 200 frames.
    assert max(heard) - min(heard) <= 8 * FRAME


@pytest.mark.parametrize("streams", [1, 4, 12, 32])
def test_nobody_runs_dry_while_others_start(streams: int) -> None:
    """Steps of 20 ms; a new stream starts every 100 ms. Arrivals go through the player's model."""
    bench = Bench(FakeCodec(), slots=32, rungs=(1, 4, 16, 32))
    generator = random.Random(3)
    starts: dict[tuple[int, int], float] = {}
    players: dict[tuple[int, int], PlayerModel] = {}
    first: dict[tuple[int, int], float] = {}
    told = 0
    while len(bench.steps) > told or len(starts) < streams:
        told = len(bench.steps)
        if len(starts) < streams and bench.clock.now >= 0.1 * len(starts):
            key = bench.open(len(starts))
            starts[key] = bench.clock.now
            bench.push(key, random_codes(generator.randrange(99), 70))
        bench.turns(1)
        bench.clock.now += 0.020
        for step in bench.steps[told:]:
            for hop in step.hops:
                key = (hop.slot, hop.generation)
                seconds = hop.size / 4 / 24_000
                first.setdefault(key, bench.clock.now)
                players.setdefault(key, PlayerModel()).arrive(bench.clock.now, seconds)
    assert len(players) == streams
    for key, player in players.items():
        assert first[key] - starts[key] <= 0.2
        assert len(bench.heard(key)) >= 67 * FRAME
        assert (player.underruns, player.continuous) == (0, True)


def test_one_bad_row_fails_alone_and_the_rest_is_run_again() -> None:
    codec = FakeCodec(delay=8)
    codec.raise_on_bad = True
    bench = Bench(codec)
    keys = [bench.open(slot) for slot in range(5)]
    spoken = {key: random_codes(key[0], 11) for key in keys}
    spoken[keys[2]][4, 0] = BAD_CODE
    for key in keys:
        bench.push(key, spoken[key])
        bench.flush(key)
    bench.turns()
    assert bench.failed == [keys[2]]
    assert bench.runner.retried_steps == 1
    assert sorted(bench.ended) == sorted(set(keys) - {keys[2]})
    for key in bench.ended:
        np.testing.assert_allclose(bench.heard(key), whole(codec, spoken[key]), atol=1e-6)
    # The slot serves again.
    codes = random_codes(77, 9)
    np.testing.assert_allclose(bench.speak(2, codes), whole(codec, codes), atol=1e-6)


def test_a_failure_that_does_not_come_again_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = FakeCodec(delay=8)
    bench = Bench(codec)
    spoken = {bench.open(slot): random_codes(slot, 11) for slot in range(5)}
    step = codec.decode_step
    failures = [RuntimeError("once")]

    def fails_once(*args: Any) -> torch.Tensor:
        pcm = step(*args)
        if failures:
            raise failures.pop()
        return pcm

    monkeypatch.setattr(codec, "decode_step", fails_once)
    for key, codes in spoken.items():
        bench.push(key, codes)
        bench.flush(key)
    bench.turns()
    assert (bench.failed, bench.runner.retried_steps) == ([], 1)
    assert sorted(bench.ended) == sorted(spoken)
    for key, codes in spoken.items():
        np.testing.assert_allclose(bench.heard(key), whole(codec, codes), atol=1e-6)


def test_a_step_that_finds_no_memory_fails_its_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(FakeCodec(first_hop_frames=7), rungs=(4,))
    running = bench.open(0)
    codes = random_codes(1, 13)
    bench.push(running, codes[:9])
    bench.turns()

    def no_room(*args: Any) -> None:
        raise torch.OutOfMemoryError("scripted")

    # Three frames are shorter than a first hop: their step is not in the ladder.
    monkeypatch.setattr(runner, "BoundStep", no_room)
    short = [bench.open(slot) for slot in (1, 2)]
    for key in short:
        bench.push(key, random_codes(key[0], 3))
        bench.flush(key)
    bench.turns()
    assert sorted(bench.failed) == short
    bench.push(running, codes[9:])
    bench.flush(running)
    bench.turns()
    assert bench.ended == [running]
    np.testing.assert_allclose(bench.heard(running), whole(bench.codec, codes), atol=1e-6)


def test_output_that_is_not_finite_fails_its_stream_alone() -> None:
    bench = Bench(FakeCodec())
    good, bad = bench.open(0), bench.open(1)
    codes = random_codes(1, 7)
    broken = codes.copy()
    broken[3, 0] = NAN_CODE
    for key, own in ((good, codes), (bad, broken)):
        bench.push(key, own)
        bench.flush(key)
    bench.turns()
    assert (bench.failed, bench.ended) == ([bad], [good])
    np.testing.assert_allclose(bench.heard(good), whole(bench.codec, codes), atol=1e-6)


def test_shapes_outside_the_ladder_run_and_are_counted() -> None:
    bench = Bench(FakeCodec(first_hop_frames=3), rungs=(1, 4))
    codes = random_codes(1, 3)
    expected = bench.speak(0, codes).tobytes()
    assert bench.runner.graph_misses == 0
    bench.runner._bound.clear()
    assert bench.speak(0, codes).tobytes() == expected
    assert bench.runner.graph_misses == 1


def test_a_thousand_random_cancels_leave_everything_as_at_the_start() -> None:
    codec = FakeCodec(delay=8)
    bench = Bench(codec, slots=8)
    generator = random.Random(5)
    sent: list[object] = []
    bench.send = sent.append  # pyright: ignore[reportAttributeAccessIssue]
    for round_ in range(1000):
        key = bench.open(generator.randrange(8))
        for _ in range(generator.randint(0, 3)):
            bench.push(key, random_codes(round_, generator.randint(0, 6)))
        bench.turns(generator.randint(0, 2))
        if generator.random() < 0.3:
            bench.flush(key, last=generator.random() < 0.5)
        bench.close(key)
    assert bench.loop.turn() > 0
    assert bench.loop._streams == {}
    assert bench.loop._running is None
    bench.clock.now += 2.0
    sent.clear()
    bench.loop._send_stats()
    stats = sent[0]
    assert isinstance(stats, CodecStats)
    assert stats.cancelled_hops > 300
    assert stats.resets <= 1000
    del bench.send  # pyright: ignore[reportAttributeAccessIssue]
    codes = random_codes(1, 12)
    np.testing.assert_allclose(bench.speak(0, codes), whole(codec, codes), atol=1e-6)


def test_the_work_of_a_hop_does_not_grow_with_the_stream() -> None:
    """Two minutes of audio: every step after the ramp runs the same shape, and nothing is kept."""
    codec = FakeCodec()
    bench = Bench(codec, rungs=(1,))
    key = bench.open(0)
    codec.shapes.clear()
    frames = 1500
    for start in range(0, frames, 50):
        bench.push(key, random_codes(start, 50))
        bench.turns()
        bench.delivered(key, start + 50)
        bench.samples[key].clear()
        assert len(bench.loop._streams[0].queue) < 4
    assert set(codec.shapes[2:]) == {(1, 4)}
    assert len(codec.shapes) == 2 + (frames - 3) // 4
