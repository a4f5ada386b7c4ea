"""Where the time of a recorded verify step goes, and what other products would make of it.

Qwen3-8B's shape with random weights. Prints the kernels of a step of one row, plain and with 1 + 4
tokens, the time of the step recorded anew with other products and other chunks of attention, and
where the host's time goes in a served step.

    python -m bench.gpu_verify [--no-profile]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import antiphon_nn.layers as layers
import torch
from antiphon_kernels.paged_attention import split
from antiphon_kernels.small_linear import kernel
from antiphon_kernels.small_linear.kernel import Shape
from antiphon_llm.engine.cuda.graphs import DecodeShape
from antiphon_llm.engine.speculating import Speculation

from bench import gpu_engine
from bench.gpu_engine import SAMPLINGS, Bench
from bench.scripted_drafter import Scripted

DEPTH = 4
WIDE = 8192
"""Outputs from which a product is one of the two large ones."""
SERVED = "served"


def tiles() -> Iterator[tuple[str, Shape | None, Shape | None]]:
    """(name, tile of small products, tile of large ones); None leaves it to cuBLAS."""
    for ahead in (0, 4, 16):
        yield f"small few, {ahead} lines ahead", Shape(16, 512, 2, 4, ahead=ahead), None
    yield "small few, 3 stages", Shape(16, 512, 2, 3, ahead=8), None
    yield "small few, 4 warps", Shape(16, 512, 4, 4, ahead=8), None
    yield "small few, deep", Shape(16, 1024, 4, 2, ahead=8), None
    yield "all few", Shape(16, 512, 2, 4, ahead=8), Shape(16, 256, 2, 4, ahead=8)
    yield "none few", None, None


def step_ms(bench: Bench, width: int) -> float:
    """ms of a step of one row, recorded now."""
    runner = bench.runner
    with torch.inference_mode():
        work = runner._decode_work(runner._decode.views(DecodeShape(1, width)))
        graph = bench.device.record(work)

        def several() -> None:
            for _ in range(10):
                graph.replay()

        return bench.replay_ms(several, 5) / 10


def with_tiles(bench: Bench, small: Shape | None, large: Shape | None) -> float:
    """ms of a verify step whose products take these tiles."""

    def choose(rows: int, width: int, *_: object) -> Shape:
        tile = large if width >= WIDE else small
        assert tile is not None
        return tile

    def fuses(rows: int, outputs: int, *, norm: bool = False, activation: bool = False) -> bool:
        tile = large if outputs >= WIDE else small
        return tile is not None

    with mock.patch.object(kernel, "choose_shape", choose), mock.patch.object(
        layers, "fuses", fuses
    ):  # fmt: skip
        return step_ms(bench, 1 + DEPTH)


def profile(bench: Bench, width: int) -> None:
    """Prints the kernels of 10 replays."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    graph = bench.runner.graphs.recordings.graph(DecodeShape(1, width))
    assert graph is not None
    with torch_profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(10):
            graph.replay()
        bench.device.synchronize()
    print(f"1 row of {width} tokens, 10 steps:", flush=True)
    print(trace.key_averages().table(sort_by="self_cuda_time_total", row_limit=16), flush=True)


def timed(owner: object, name: str, totals: dict[str, float]) -> None:
    """Adds up what calls of a method take on the host."""
    method = getattr(owner, name)
    key = f"{type(owner).__name__}.{name}"
    totals[key] = 0.0

    def wrapper(*arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        try:
            return method(*arguments, **named)
        finally:
            totals[key] += time.perf_counter() - started

    object.__setattr__(owner, name, wrapper)


def host(bench: Bench) -> None:
    """Prints where the host's time of a served step with refused drafts goes, per step."""
    loop, runner = bench.loop, bench.runner
    loop.speculation = Speculation(Scripted([1] * 512, 0.0, 1 << 16), depth=DEPTH)
    totals: dict[str, float] = {}
    for owner, name in (
        (loop, "step"), (loop, "_propose"), (loop, "_launch_next"), (loop, "_collect_oldest"),
        (loop, "_publish"), (loop.scheduler, "plan"), (runner, "launch"),
        (runner, "collect"), (runner, "_publish"), (runner._draws, "begin"),
        (runner._draws, "complete"), (runner.graphs, "run"), (runner._decode_uploads, "publish"),
        (runner._tables, "publish"), *((readback, "wait") for readback in runner._readbacks),
    ):  # fmt: skip
        timed(owner, name, totals)
    steps = gpu_engine.NEW_TOKENS
    bench.serve(1, gpu_engine.PROMPT, steps, SAMPLINGS["greedy"])
    for name, seconds in sorted(totals.items(), key=lambda item: -item[1]):
        print(f"  {name:32s} {seconds / steps * 1e6:8.1f} us a step", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Prints everything."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--no-profile", action="store_true")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    bench = Bench(
        "8b",
        gpu_engine.parse(
            ["--model", "8b", "--rows", "1", "--draft-depth", str(DEPTH), "--step-tokens", "1024"]
        ),
    )
    bench.serve(1, gpu_engine.PROMPT, 64, SAMPLINGS["greedy"])
    print(f"ready in {time.perf_counter() - started:.1f} s", flush=True)
    if not options.no_profile:
        for width in (1, 1 + DEPTH):
            profile(bench, width)
    print(f"{'plain':36s} {step_ms(bench, 1):7.3f} ms", flush=True)
    print(f"{SERVED:36s} {step_ms(bench, 1 + DEPTH):7.3f} ms", flush=True)
    for queries in (2, 1 + DEPTH):
        with mock.patch.object(split, "CHUNK_QUERIES", queries):
            name = f"attention of {queries} queries at once"
            print(f"{name:36s} {step_ms(bench, 1 + DEPTH):7.3f} ms", flush=True)
    for name, small, large in tiles():
        try:
            print(f"{name:36s} {with_tiles(bench, small, large):7.3f} ms", flush=True)
        except Exception as error:
            print(f"{name:36s} {type(error).__name__}: {str(error)[:200]}", flush=True)
    host(bench)
    print(f"total {time.perf_counter() - started:.1f} s", flush=True)
    bench.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
