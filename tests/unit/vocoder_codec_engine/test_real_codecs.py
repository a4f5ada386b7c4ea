"""Small codecs of every family through the loop: any cut equals the codec's own whole."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from antiphon_vocoder.codec.contract import Codec
from antiphon_vocoder.codec.registry import load
from antiphon_vocoder.codec_messages import Stage
from antiphon_vocoder.formats.pcm import pcm16_from_float
from engine_bench import Bench, pieces
from unit.vocoder_codec.small_codecs import WRITERS


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=["mimi", "encodec", "rvq_vae", "dac"])
def codec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Codec:
    directory: Path = tmp_path_factory.mktemp(request.param)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        WRITERS[request.param](directory)
    return load(directory)


def test_decoding_any_cut_in_company(codec: Codec) -> None:
    spec = codec.spec
    bench = Bench(codec, slots=4, rungs=(4,))
    first = bench.runner.plans[Stage.DECODE].boundary(0)
    generator = random.Random(2)
    for frames in (1, first, first + 1, 4 * first + 3):
        codes = np.random.default_rng(frames).integers(
            0, spec.codebook_size, (frames, spec.codebook_count), dtype=np.int32
        )
        whole = codec.decode(torch.from_numpy(codes.T[None].astype(np.int64)))[0].numpy()
        cuts = [generator.randint(0, frames) for _ in range(4)]
        company = bench.open(3, codebooks=spec.codebook_count)
        bench.push(company, codes[::-1].copy())
        spoken = bench.speak(0, codes, cuts)
        assert len(spoken) == frames * spec.frame_samples
        np.testing.assert_allclose(spoken, whole[: len(spoken)], atol=1e-5)
        assert bench.speak(1, codes).tobytes() == spoken.tobytes()
        bench.close(company)


def test_the_rung_changes_no_sample_by_more_than_one_step_of_16_bits(codec: Codec) -> None:
    """Alone in a step of one row, and with three padding rows beside it."""
    spec = codec.spec
    shape = (2 * spec.first_hop_frames + 7, spec.codebook_count)
    codes = np.random.default_rng(5).integers(0, spec.codebook_size, shape, dtype=np.int32)
    one, four = (Bench(codec, slots=4, rungs=(rung,)).speak(0, codes) for rung in (1, 4))
    heard = [pcm16_from_float(samples).astype(np.int32) for samples in (one, four)]
    assert np.abs(heard[0]).max() > 100
    assert np.abs(heard[0] - heard[1]).max() <= 1


def test_encoding_any_cut(codec: Codec) -> None:
    spec = codec.spec
    bench = Bench(codec, slots=4, rungs=(4,))
    first = bench.runner.plans[Stage.ENCODE].boundary(0)
    length = (3 * first + 2) * spec.frame_samples - 5
    audio = np.random.default_rng(3).uniform(-0.5, 0.5, length).astype(np.float32)
    whole = codec.encode(torch.from_numpy(audio)[None])[0].numpy().T
    generator = random.Random(4)
    for slot in range(3):
        key = bench.open(slot, stage=Stage.ENCODE, codebooks=spec.codebook_count)
        for start, stop in pieces(length, [generator.randint(0, length) for _ in range(5 * slot)]):
            bench.push(key, audio[start:stop])
            bench.turns(2)
        bench.flush(key)
        bench.turns()
        codes = bench.encoded(key)
        assert len(codes) == 3 * first + 2
        assert (codes == whole).mean() > 0.99
        bench.close(key)


@pytest.mark.slow
def test_a_hop_costs_the_same_after_ten_minutes(codec: Codec) -> None:
    """By CPU time: the median of the last minute's steps is that of the second minute's."""
    spec = codec.spec
    bench = Bench(codec, slots=1, rungs=(1,), lead_seconds=1e9)
    steady = bench.runner.plans[Stage.DECODE].steady
    steps = int(600 * spec.sample_rate / spec.frame_samples / steady)
    key = bench.open(0, codebooks=spec.codebook_count)
    generator = np.random.default_rng(1)
    shape = (steady, spec.codebook_count)
    seconds: list[float] = []
    for _ in range(steps):
        bench.push(key, generator.integers(0, spec.codebook_size, shape, dtype=np.int32))
        started = time.process_time()
        bench.turns()
        seconds.append(time.process_time() - started)
        bench.samples[key].clear()
    minute = steps // 10
    early, late = np.median(seconds[minute : 2 * minute]), np.median(seconds[-minute:])
    assert late <= 1.25 * early
    assert bench.failed == []
