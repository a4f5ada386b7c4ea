"""Time of the device's kernels on the shapes of Qwen3-8B and Qwen3-0.6B, beside torch's own.

Each line: microseconds of one call (CUDA events over a recorded graph of calls on rotating
buffers larger than the L2 cache), bytes or operations, share of the floor that the device's
bandwidth or arithmetic sets, and torch's time where it has the operation. A line is printed
only after the result agreed with the fp32 reference.

    python -m bench.gpu_kernels [--only linear decode prefill rows] [--sweep] [--json]

``--sweep`` tries the tiles of each shape, checks them too and prints the best eight; processes
of its own compile them side by side first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton

BYTES_PER_S = 4.25e12
"""Copy bandwidth measured on an H200."""

OPERATIONS_PER_S = 792e12
"""bf16 products measured on an H200."""

L2_BYTES = 50 * 2**20
CALLS = 20
REPLAYS = 5

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Work:
    """One operation on one shape.

    Attributes:
        name: as printed.
        call: runs it on buffer set ``i``.
        nbytes: bytes that it must move.
        operations: floating-point operations.
        check: raises AssertionError when a result on buffer set 0 is wrong.
        peer: torch's own on buffer set ``i``, if it has one.
        variants: other launches of the same work, by name, for a sweep.
    """

    name: str
    call: Callable[[int], object]
    nbytes: float
    operations: float = 0.0
    check: Callable[[Any], None] | None = None
    peer: Callable[[int], object] | None = None
    variants: dict[str, Callable[[int], object]] | None = None


@dataclass(frozen=True)
class Timing:
    """What one line says; times in microseconds."""

    name: str
    us: float
    floor_us: float
    torch_us: float | None

    def line(self) -> str:
        """The printed form."""
        peer = f"{self.torch_us:9.1f}" if self.torch_us is not None else "        -"
        share = self.floor_us / self.us
        return f"{self.name:44s} {self.us:9.1f} {self.floor_us:9.1f} {share:6.1%} {peer}"


def copies(nbytes: float) -> int:
    """Buffer sets whose bytes together are several times the L2 cache."""
    return max(2, min(CALLS, -(-4 * L2_BYTES // max(1, int(nbytes)))))


def microseconds(call: Callable[[int], object]) -> float:
    """Time of one call: the median replay of a graph of CALLS calls."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for index in range(2):
            call(index)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(CALLS):
            call(index)
    times = []
    for _ in range(REPLAYS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / CALLS)
    return sorted(times[1:])[REPLAYS // 2]


def measure(work: Work, sweep: bool) -> Timing:
    """Checks one piece of work, then times it and its peer."""
    if work.check is not None:
        work.check(work.call(0))
        torch.cuda.synchronize()
    floor = max(work.nbytes / BYTES_PER_S, work.operations / OPERATIONS_PER_S) * 1e6
    peer = None if work.peer is None else microseconds(work.peer)
    timing = Timing(work.name, microseconds(work.call), floor, peer)
    print(timing.line(), flush=True)
    if sweep and work.variants:
        tried = {}
        for name, call in work.variants.items():
            try:
                if work.check is not None:
                    work.check(call(0))
                tried[name] = microseconds(call)
            except triton.runtime.errors.OutOfResources:
                continue
            except AssertionError as error:
                print(f"    {name} WRONG {str(error).strip().splitlines()[-1]}", flush=True)
        for name in sorted(tried, key=tried.__getitem__)[:8]:
            print(f"    {name:40s} {tried[name]:9.1f}", flush=True)
    return timing


def all_works(only: list[str]) -> Iterator[Work]:
    """The works of the chosen groups, each built when its turn comes."""
    from bench import gpu_works

    for group in only:
        yield from gpu_works.GROUPS[group]()


def compile_variants(only: list[str], part: int, parts: int) -> None:
    """Runs every ``parts``-th variant once, which leaves it in Triton's cache."""
    for work in all_works(only):
        for index, (name, call) in enumerate((work.variants or {}).items()):
            if index % parts == part:
                try:
                    call(0)
                except triton.runtime.errors.OutOfResources as error:
                    print(f"{work.name} {name}: {error}", flush=True)


def compile_side_by_side(only: list[str]) -> None:
    """:func:`compile_variants` in as many processes as are worth it."""
    parts = max(1, min(12, (os.cpu_count() or 2) - 2))
    command = [sys.executable, "-m", "bench.gpu_kernels", "--only", *only, "--compile"]
    workers = [
        subprocess.Popen([*command, str(part), str(parts)], cwd=RESULTS.parent.parent)
        for part in range(parts)
    ]
    for worker in workers:
        worker.wait()


def write(timings: list[Timing]) -> Path:
    """Writes bench/results/gpu_kernels-<device>-<commit>.json."""
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    done = subprocess.run(command, cwd=RESULTS.parent, capture_output=True, text=True)
    commit = done.stdout.strip() or "unknown"
    device = torch.cuda.get_device_name().replace(" ", "-")
    path = RESULTS / f"gpu_kernels-{device}-{commit}.json"
    record = {
        "commit": commit,
        "device": device,
        "torch": torch.__version__,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "timings": [asdict(timing) for timing in timings],
    }
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return path


def main() -> None:
    groups = ("linear", "decode", "prefill", "rows")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=groups, default=list(groups))
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--compile", nargs=2, type=int, metavar=("PART", "PARTS"))
    options = parser.parse_args()
    if options.compile:
        compile_variants(options.only, *options.compile)
        return
    if options.sweep:
        compile_side_by_side(options.only)
    print(f"{'operation':44s} {'us':>9s} {'floor us':>9s} {'share':>6s} {'torch us':>9s}")
    timings = []
    started = time.perf_counter()
    for work in all_works(options.only):
        try:
            timings.append(measure(work, options.sweep))
        except AssertionError as error:
            print(f"{work.name:44s} WRONG {str(error).strip().splitlines()[-1]}", flush=True)
    print(f"{time.perf_counter() - started:.0f} s")
    if options.json:
        print(f"results: {write(timings).name}")


if __name__ == "__main__":
    main()
