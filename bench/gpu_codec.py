"""Mimi's speed on a CUDA device: ms of an 80 ms frame, streaming, beside kyutai's own package.

Random weights of the published size. Each cell is one step of B streams in a CUDA graph: decode
of 32 codebooks, and encode. Every precision is timed; one below fp32 counts for a bar of decode
only if its audio has an SNR of 40 dB to fp32's, of encode only if its codes agree to 99 %; both
are printed. The peer (package ``moshi``, fp32, its own CUDA graphs, ``streaming_forever``) runs
in this process where it can be imported; each bar is our time over the peer's, measured here or
recorded on a faster host, whichever is less.

    python -m bench.gpu_codec [--bars] [--peer DIRECTORY] [--precision fp32 tf32] [--json FILE]
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from antiphon_llm.engine.cuda.device import Device, open_device
from antiphon_vocoder.codec.contract import Precision
from antiphon_vocoder.codec.mimi import Mimi

from bench import gpu_command
from bench.random_codec import random_mimi

DECODE_BATCHES = (1, 16, 64, 256)
ENCODE_BATCHES = (1, 16, 64)
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16x3", "fp16", "bf16")
LEAST_SNR_DB = 40.0
LEAST_AGREEMENT = 0.99
COMPARED_FRAMES = 64
COMPARED_STREAMS = 8
CALLS = 60
PROFILED_STEPS = 5
PROFILED_KERNELS = 25

PEER_MS = {
    "decode": {1: 1.63, 16: 2.54, 64: 4.21, 256: 7.44},
    "encode": {1: 2.26, 16: 3.02, 64: 3.96},
}
"""kyutai's package as measured on an H200, for runs without it."""

SMALL = {
    "num_filters": 8,
    "hidden_size": 64,
    "num_quantizers": 4,
    "codebook_size": 64,
    "codebook_dim": 32,
    "vector_quantization_hidden_dimension": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "sliding_window": 32,
}
"""For trying the script on a host."""


@dataclass(frozen=True)
class Quality:
    """A precision against fp32."""

    snr_db: float
    agreement: float

    @property
    def counts(self) -> dict[str, bool]:
        """By direction, whether its times may be held against the bars."""
        return {
            "decode": self.snr_db >= LEAST_SNR_DB,
            "encode": self.agreement >= LEAST_AGREEMENT,
        }


@dataclass(frozen=True)
class Cell:
    """One measured point, ms a frame."""

    direction: str
    batch: int
    precision: Precision
    identity: float
    """Row i is slot i."""
    indexed: float
    """Rows are named by a tensor, in another order."""
    replay: float
    """One graph after another, without the host between them; rows as in ``identity``."""


def timed(run: Callable[[], object], device: Device, calls: int) -> float:
    """The median ms of a call that is waited for."""
    times = []
    for _ in range(calls + 5):
        device.synchronize()
        started = time.perf_counter()
        run()
        device.synchronize()
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times[5:])


def measure_cell(
    codec: Mimi, device: Device, direction: str, batch: int, precision: Precision, calls: int
) -> Cell:
    """Records a step of so many streams and times it with fresh inputs each call."""
    spec, on = codec.spec, device.device
    mask = torch.ones(batch, dtype=torch.bool, device=on)
    order = torch.arange(batch - 1, -1, -1, device=on)
    times = []
    for rows in (None, order):
        if direction == "decode":
            state = codec.decoder_state(batch, 1)
            fresh = torch.randint(0, spec.codebook_size, (batch, spec.codebook_count, 1), device=on)
        else:
            state = codec.encoder_state(batch, 1)
            fresh = torch.randn(batch, spec.frame_samples, device=on) * 0.3
        given = fresh.clone()

        def step(given: torch.Tensor = given, rows=rows, state=state) -> None:
            if direction == "decode":
                codec.decode_step(given, state, rows, mask)
            else:
                codec.encode_step(given, state, rows, mask)

        graph = device.record(step)

        def hop(given: torch.Tensor = given, fresh: torch.Tensor = fresh, graph=graph) -> None:
            given.copy_(fresh)
            graph.replay()

        def several(graph=graph) -> None:
            for _ in range(10):
                graph.replay()

        times.append(timed(hop, device, calls))
        if rows is None:
            times.append(timed(several, device, max(calls // 10, 3)) / 10)
        del graph, state
    identity, replay, indexed = times
    return Cell(direction, batch, precision, identity, indexed, replay)


def profile(codec: Mimi, device: Device, direction: str, batch: int) -> None:
    """Prints the kernels that take most of a step, their time and launches in it."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as trace

    mask = torch.ones(batch, dtype=torch.bool, device=device.device)
    spec = codec.spec
    codes = torch.zeros(batch, spec.codebook_count, 1, dtype=torch.int64, device=device.device)
    pcm = torch.zeros(batch, spec.frame_samples, device=device.device)
    state = (
        codec.decoder_state(batch, 1) if direction == "decode" else codec.encoder_state(batch, 1)
    )
    with trace(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as taken:
        for _ in range(PROFILED_STEPS):
            if direction == "decode":
                codec.decode_step(codes, state, None, mask)
            else:
                codec.encode_step(pcm, state, None, mask)
        device.synchronize()
    kernels = [event for event in taken.key_averages() if "CUDA" in str(event.device_type)]
    kernels.sort(key=lambda event: -event.self_device_time_total)
    for event in kernels[:PROFILED_KERNELS]:
        microseconds = event.self_device_time_total / PROFILED_STEPS
        count = event.count / PROFILED_STEPS
        print(f"    {microseconds:8.1f} us in {count:5.1f} x {event.key[:90]}", flush=True)


def compare(codec: Mimi, exact: Mimi) -> Quality:
    """A precision's audio and codes against fp32's, over clips of noise bursts."""
    spec = exact.spec
    generator = torch.Generator().manual_seed(9)
    shape = (COMPARED_STREAMS, spec.codebook_count, COMPARED_FRAMES)
    codes = torch.randint(0, spec.codebook_size, shape, generator=generator).to(exact.device)
    want, got = exact.decode(codes).double(), codec.decode(codes).double()
    noise = (want - got).square().sum().item()
    snr = math.inf if noise == 0 else 10 * math.log10(want.square().sum().item() / noise)
    samples = COMPARED_FRAMES * spec.frame_samples
    pcm = torch.randn(COMPARED_STREAMS, samples, generator=generator) * 0.3
    envelope = torch.rand(COMPARED_STREAMS, COMPARED_FRAMES, 1, generator=generator)
    pcm = (pcm.view(COMPARED_STREAMS, COMPARED_FRAMES, -1) * envelope).flatten(1).to(exact.device)
    agreement = (exact.encode(pcm) == codec.encode(pcm)).double().mean().item()
    return Quality(snr, agreement)


def peer_cells(device: Device, batches: dict[str, Sequence[int]], calls: int) -> dict[str, Any]:
    """ms a frame of kyutai's package by direction and batch; empty where it is not installed."""
    try:
        from moshi.models.loaders import get_mimi  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        print(f"moshi cannot be imported ({error}): recorded figures stand in")
        return {}
    cells: dict[str, Any] = {}
    on = device.device
    for direction, sizes in batches.items():
        cells[direction] = {}
        for batch in sizes:
            peer = get_mimi(None, device=on, num_codebooks=32)
            codes = torch.randint(0, peer.cardinality, (batch, 32, 1), device=on)
            pcm = torch.randn(batch, 1, peer.frame_size, device=on) * 0.3
            run = (
                partial(peer.decode, codes) if direction == "decode" else partial(peer.encode, pcm)
            )
            with torch.no_grad():
                peer.streaming_forever(batch)
                cells[direction][batch] = timed(run, device, calls)
            del peer, run
    return cells


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs what was asked for and prints it as it comes."""
    if options.peer:
        sys.path.insert(0, str(options.peer.resolve()))
    device = open_device(options.device)
    changes = SMALL if options.small else {}
    exact = random_mimi(device.device, "fp32", **changes)
    batches = {"decode": options.decode, "encode": options.encode}
    peer = {} if options.no_peer else peer_cells(device, batches, options.calls)
    raw: dict[str, Any] = {"cells": [], "quality": {}, "peer": peer, "torch": torch.__version__}
    for precision in options.precision:
        codec = exact if precision == "fp32" else random_mimi(device.device, precision, **changes)
        quality = compare(codec, exact)
        raw["quality"][precision] = asdict(quality) | {"counts": quality.counts}
        print(
            f"{precision}: SNR to fp32 {quality.snr_db:.1f} dB, codes agree {quality.agreement:.2%}"
            f"; counts for: {', '.join(d for d, c in quality.counts.items() if c) or 'nothing'}",
            flush=True,
        )
        for direction, sizes in batches.items():
            for batch in sizes:
                cell = measure_cell(codec, device, direction, batch, precision, options.calls)
                raw["cells"].append(asdict(cell))
                print(_line(cell, peer), flush=True)
                if options.profile:
                    profile(codec, device, direction, batch)
    return raw


def _peer_ms(peer: dict[str, Any], direction: str, batch: int) -> float | None:
    measured = peer.get(direction, {}).get(batch)
    recorded = PEER_MS.get(direction, {}).get(batch)
    return min((ms for ms in (measured, recorded) if ms), default=None)


def _line(cell: Cell, peer: dict[str, Any]) -> str:
    beside = _peer_ms(peer, cell.direction, cell.batch)
    ratio = f"   moshi {beside:6.3f}, ratio {cell.identity / beside:.2f}" if beside else ""
    return (
        f"  {cell.direction} B={cell.batch:3d}  {cell.identity:7.3f} ms a frame   "
        f"indexed rows {cell.indexed:7.3f}   graph alone {cell.replay:7.3f}{ratio}"
    )


def judge(raw: dict[str, Any]) -> int:
    """Prints the bars of what was measured; the exit status to use."""
    # Here, so that a machine without psutil can still measure.
    from bench.report import Report

    report = Report("codec_gpu")
    quality = raw["quality"]
    counted = [c for c in raw["cells"] if quality[c["precision"]]["counts"][c["direction"]]]
    for direction, sizes in PEER_MS.items():
        for batch in sizes:
            found = [c for c in counted if (c["direction"], c["batch"]) == (direction, batch)]
            beside = _peer_ms(raw["peer"], direction, batch)
            if found and beside:
                best = min(found, key=lambda cell: cell["identity"])
                detail = best | {"moshi": beside, "moshi_ran": bool(raw["peer"])}
                report.add(f"{direction}_{batch}", round(best["identity"] / beside, 3), detail)
    return report.finish()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--decode", nargs="*", type=int, default=list(DECODE_BATCHES))
    parser.add_argument("--encode", nargs="*", type=int, default=list(ENCODE_BATCHES))
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--peer", type=Path, help="a directory to import moshi from")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--profile", action="store_true", help="the top kernels of each cell")
    parser.add_argument("--bars", action="store_true", help="judge against bars.toml")
    parser.add_argument("--json", type=Path, help="write the raw figures here")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(gpu_command.run(parse(sys.argv[1:]), measure, judge))
