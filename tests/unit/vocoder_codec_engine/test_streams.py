"""Streams of the codec process: cuts, company, slots, flush, clear, the ends of a stream."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from antiphon_vocoder.codec_messages import Stage
from engine_bench import Bench, pieces, random_codes
from support.fake_codec import FRAME, SIZE, FakeCodec, whole

VARIANTS = [
    pytest.param({}, id="plain"),
    pytest.param({"delay": 8}, id="trailing"),
    pytest.param({"first_hop_frames": 3}, id="first-hop-3"),
]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("frames", [0, 1, 2, 3, 4, 5, 7, 8, 23])
def test_any_cut_gives_the_same_samples_and_their_exact_number(
    variant: dict[str, int], frames: int
) -> None:
    codec = FakeCodec(**variant)
    bench = Bench(codec)
    codes = random_codes(frames, frames)
    expected = bench.speak(0, codes)
    assert len(expected) == frames * FRAME
    np.testing.assert_allclose(expected, whole(codec, codes) if frames else [], atol=1e-6)
    generator = random.Random(frames)
    for _ in range(5):
        cuts = [generator.randint(0, frames) for _ in range(generator.randint(0, 6))]
        assert bench.speak(generator.randrange(8), codes, cuts).tobytes() == expected.tobytes()
    assert bench.speak(1, codes, list(range(frames))).tobytes() == expected.tobytes()


def test_hops_follow_the_ramp() -> None:
    bench = Bench(FakeCodec())
    bench.speak(0, random_codes(1, 20), list(range(20)))
    assert [step.frames for step in bench.steps] == [1, 2, 4, 4, 4, 4, 1]


def test_a_codec_of_short_frames_has_its_own_ramp() -> None:
    plan = Bench(FakeCodec(first_hop_frames=3)).runner.plans[Stage.DECODE]
    assert [plan.boundary(0), plan.boundary(3), plan.boundary(5)] == [3, 5, 9]
    assert plan.next_hop(0, 2, 2, ended=False) == 0
    assert plan.next_hop(0, 2, 2, ended=True) == 2


def test_first_codebooks_only() -> None:
    codec = FakeCodec()
    codes = random_codes(3, 9, codebooks=2)
    bench = Bench(codec)
    np.testing.assert_allclose(bench.speak(0, codes), whole(codec, codes), atol=1e-6)


@pytest.mark.parametrize("company", [1, 8, 32])
def test_samples_do_not_depend_on_company_or_slot(company: int) -> None:
    alone = Bench(FakeCodec(delay=8), slots=32, rungs=(32,))
    codes = random_codes(7, 30)
    expected = alone.speak(5, codes).tobytes()
    bench = Bench(FakeCodec(delay=8), slots=32, rungs=(32,))
    spoken = {bench.open(slot): random_codes(100 + slot, 30) for slot in range(company - 1)}
    spoken[bench.open(31)] = codes
    generator = random.Random(company)
    waiting = {key: pieces(30, [generator.randint(0, 30) for _ in range(4)]) for key in spoken}
    while any(waiting.values()):
        key = generator.choice([key for key, left in waiting.items() if left])
        start, stop = waiting[key].pop(0)
        bench.push(key, spoken[key][start:stop])
        bench.turns(generator.randint(0, 2))
    for key in spoken:
        bench.flush(key)
    bench.turns()
    assert sorted(bench.ended) == sorted(spoken)
    assert bench.heard((31, 1)).tobytes() == expected
    for key, own in spoken.items():
        np.testing.assert_allclose(bench.heard(key), whole(bench.codec, own), atol=1e-6)


def test_streams_join_and_leave_at_random_and_never_change_each_other() -> None:
    codec = FakeCodec(delay=8)
    bench = Bench(codec, slots=6)
    generator = random.Random(11)
    live: dict[tuple[int, int], tuple[np.ndarray, int]] = {}
    finished = 0
    for seed in range(1000):
        action = generator.random()
        free = [slot for slot in range(6) if slot not in {key[0] for key in live}]
        if action < 0.2 and free:
            live[bench.open(generator.choice(free))] = (random_codes(seed, 15), 0)
        elif action < 0.3 and live:
            bench.close(key := generator.choice(list(live)))
            del live[key]
        elif live:
            key = generator.choice(list(live))
            codes, sent = live[key]
            more = min(sent + generator.randint(0, 5), len(codes))
            bench.push(key, codes[sent:more])
            live[key] = (codes, more)
            if more == len(codes):
                bench.flush(key)
                bench.turns()
                np.testing.assert_allclose(bench.heard(key), whole(codec, codes), atol=1e-6)
                bench.close(key)
                del live[key]
                finished += 1
        bench.turns(generator.randint(0, 2))
    assert finished > 30
    for key in live:
        bench.close(key)
    assert bench.turns() == 0
    assert bench.loop.turn() > 0


def test_a_reused_slot_equals_a_fresh_one_whatever_was_left_there() -> None:
    codec = FakeCodec(delay=8)
    bench = Bench(codec)
    codes = random_codes(5, 12)
    fresh = bench.speak(2, codes).tobytes()
    left = bench.open(2)
    bench.push(left, random_codes(6, 5))
    bench.turns()
    bench.close(left)
    for tensor in codec.states[-1].tensors.values():
        if tensor.is_floating_point():
            tensor.fill_(torch.nan)
    assert bench.speak(2, codes).tobytes() == fresh


def test_a_late_message_of_an_earlier_stream_is_nobodys() -> None:
    bench = Bench(FakeCodec())
    old = bench.open(0)
    new = bench.open(0)
    bench.push(old, random_codes(1, 8))
    bench.flush(old)
    bench.turns()
    assert bench.steps == []
    bench.close(old)
    bench.push(new, random_codes(2, 1))
    assert bench.turns() == 1


def test_flush_speaks_at_once_and_returns_to_the_grid() -> None:
    codec = FakeCodec()
    bench = Bench(codec)
    codes = random_codes(9, 16)
    key = bench.open(0)
    bench.push(key, codes[:5])
    bench.turns()
    assert len(bench.heard(key)) == 3 * FRAME
    bench.flush(key, last=False)
    bench.turns()
    assert len(bench.heard(key)) == 5 * FRAME
    bench.push(key, codes[5:])
    bench.flush(key)
    bench.turns()
    assert [step.frames for step in bench.steps] == [1, 2, 2, 2, 4, 4, 1]
    np.testing.assert_allclose(bench.heard(key), whole(codec, codes), atol=1e-6)


def test_what_follows_a_clear_is_a_new_stream() -> None:
    codec = FakeCodec(delay=8)
    bench = Bench(codec)
    codes = random_codes(4, 10)
    expected = bench.speak(1, codes).tobytes()
    key = bench.open(0)
    bench.push(key, random_codes(8, 9))
    bench.turns(2)
    before = len(bench.heard(key))
    bench.clear(key, 1)
    assert bench.turns() == 0
    bench.push(key, codes)
    bench.flush(key)
    bench.turns()
    assert bench.heard(key)[before:].tobytes() == expected
    assert {hop.epoch for step in bench.steps[-3:] for hop in step.hops} == {1}


@pytest.mark.parametrize("lookahead", [0, 6])
@pytest.mark.parametrize("ramp", [[1], [1, 2, 4]])
def test_encoding_any_cut_gives_the_same_codes(lookahead: int, ramp: list[int]) -> None:
    codec = FakeCodec(lookahead=lookahead)
    bench = Bench(codec, encode_ramp=ramp)
    generator = np.random.default_rng(1)
    for length in (0, 1, FRAME, 3 * FRAME - 1, 3 * FRAME + 5, 9 * FRAME):
        audio = generator.uniform(-0.5, 0.5, length).astype(np.float32)
        expected = codec.encode(torch.from_numpy(audio)[None])[0].numpy().T if length else None
        for cut in range(3):
            key = bench.open(cut, stage=Stage.ENCODE, codebooks=3)
            cuts = sorted(generator.integers(0, length + 1, 5 * cut).tolist())
            for start, stop in pieces(length, cuts):
                bench.push(key, audio[start:stop])
                bench.turns(1)
            bench.flush(key)
            bench.turns()
            assert bench.ended.count(key) == 1
            codes = bench.encoded(key)
            assert len(codes) == -(-length // FRAME)
            if expected is not None:
                np.testing.assert_array_equal(codes, expected[:, :3])
            bench.close(key)


def test_both_directions_share_the_slots_and_not_the_steps() -> None:
    codec = FakeCodec()
    bench = Bench(codec)
    codes = random_codes(2, 6)
    audio = np.full(5 * FRAME, 0.25, np.float32)
    speaker, listener = bench.open(0), bench.open(1, stage=Stage.ENCODE)
    bench.push(speaker, codes)
    bench.push(listener, audio)
    for key in (speaker, listener):
        bench.flush(key)
    bench.turns()
    np.testing.assert_allclose(bench.heard(speaker), whole(codec, codes), atol=1e-6)
    assert len(bench.encoded(listener)) == 5
    assert bench.encoded(listener).max() < SIZE


def test_distinct_tones_stay_with_their_streams() -> None:
    bench = Bench(FakeCodec(), slots=64)
    keys = [bench.open(slot) for slot in range(64)]
    for place, key in enumerate(keys):
        codes = np.zeros((25, 4), np.int32)
        codes[:, 0] = place * 5
        bench.push(key, codes)
        bench.flush(key)
    bench.turns()
    for place, key in enumerate(keys):
        heard = bench.heard(key)
        spectrum = np.abs(np.fft.rfft(heard))
        pitch = spectrum.argmax() * 24_000 / len(heard)
        assert abs(pitch - (100 + 4 * place * 5)) < 1.0
    assert max(len(step.hops) for step in bench.steps) == 64
