"""What is warm when the codec process says that it is ready: every stage at every rung."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from antiphon_vocoder.codec.contract import Codec
from antiphon_vocoder.codec.registry import load
from antiphon_vocoder.codec_engine.bound import BoundStep
from antiphon_vocoder.codec_messages import Stage
from engine_bench import Bench
from torch.nn import functional
from unit.vocoder_codec.small_codecs import WRITERS

from bench.random_codec import random_mimi

RUNGS = (7, 9)
"""No other test has them: what their shapes need cannot be there already."""
COMPILED = "create:cache_miss"
"""How oneDNN tells that it built a primitive instead of finding it in its cache."""
RAMP: dict[str, Any] = {"decode_ramp": [1, 2], "encode_ramp": [1]}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def units(codec: Codec, stage: Stage, frames: int) -> np.ndarray:
    """Input of so many frames: codes (frames, codebooks), or samples with the lookahead behind."""
    spec, generator = codec.spec, np.random.default_rng(frames)
    if stage is Stage.DECODE:
        shape = (frames, spec.codebook_count)
        return generator.integers(0, spec.codebook_size, shape, dtype=np.int32)
    count = frames * spec.frame_samples + spec.encode_lookahead_samples
    return generator.uniform(-0.5, 0.5, count).astype(np.float32)


def stream_together(bench: Bench, stage: Stage, rows: int, frames: int) -> None:
    """So many equal streams from their open to their end; all their hops run in company."""
    codebooks = bench.codec.spec.codebook_count
    keys = [bench.open(slot, stage=stage, codebooks=codebooks) for slot in range(rows)]
    for key in keys:
        bench.push(key, units(bench.codec, stage, frames))
    for key in keys:
        bench.flush(key)
    bench.turns()
    for key in keys:
        bench.close(key)


@pytest.mark.parametrize(
    "family",
    [
        "mimi",
        "rvq_vae",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("encodec", "dac")),
    ],
)
def test_nothing_is_made_after_readiness(
    family: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Streams of every length at every rung: no step is bound, no primitive built, no module read,
    and no shape runs that warm-up has not run."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        WRITERS[family](tmp_path)
    codec = load(tmp_path)
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON_CREATION):
        bench = Bench(codec, slots=RUNGS[-1], rungs=RUNGS, booted=True, **RAMP)
        capfd.readouterr()
        runner = bench.runner
        ladder = {(key.stage, key.frames, rows) for key, rows in runner._bound}
        modules = set(sys.modules)
        monkeypatch.setattr(BoundStep, "__init__", _no_more_steps)
        for stage, plan in runner.plans.items():
            for rows in bench.rungs:
                for size in plan.sizes:
                    stream_together(bench, stage, rows, plan.boundary(0) + size)
        since = capfd.readouterr().out.count(COMPILED)
        length = 500 + ord(family[0])
        functional.conv1d(torch.ones(9, 32, length), torch.ones(32, 32, 31))
        other = capfd.readouterr().out.count(COMPILED)
    assert {(step.stage, step.frames, step.rows) for step in bench.steps} == ladder
    assert len(bench.ended) == sum(
        rows * len(plan.sizes) for plan in runner.plans.values() for rows in bench.rungs
    )
    assert (runner.graph_misses, runner.retried_steps, bench.failed) == (0, 0, [])
    assert set(sys.modules) == modules
    assert since == 0
    assert other > 0, "what is built is not seen here"


def _no_more_steps(*_: object) -> None:
    raise AssertionError("a step was bound after readiness")


@pytest.mark.slow
def test_the_first_hop_costs_what_later_ones_cost() -> None:
    """By CPU time, which other processes lengthen least; the better half of several boots."""
    codec = random_mimi(torch.device("cpu"), num_filters=16, hidden_size=128, num_hidden_layers=2)
    ratios: dict[tuple[Stage, int], list[float]] = {}
    for _ in range(5):
        bench = Bench(codec, slots=4, rungs=(1, 4), booted=True, **RAMP)
        for stage, plan in bench.runner.plans.items():
            for rows in bench.rungs:
                seconds = []
                for _ in range(15):
                    started = time.process_time()
                    stream_together(bench, stage, rows, plan.boundary(0))
                    seconds.append(time.process_time() - started)
                ratio = seconds[0] / statistics.median(seconds[1:])
                ratios.setdefault((stage, rows), []).append(ratio)
    found = {key: statistics.median_low(values) for key, values in ratios.items()}
    assert {stage for stage, _ in found} == {Stage.DECODE, Stage.ENCODE}
    assert max(found.values()) <= 1.2, found
