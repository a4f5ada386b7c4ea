"""Decode and prefill speed of the engine on a CUDA device, with random weights, in process.

Drives scheduler, loop and device runner with a front that only takes notes: 512-token prompts
and 256 new tokens at several concurrencies, one 2048-token prompt, and 64 of them. Beside each
figure stand the share of the floor (bytes at the measured copy rate, or products at the measured
matrix rate, whichever is longer), the time of the matrix products alone through cuBLAS in one
graph of the same run, and what vLLM 0.24 was measured to take on this card.

    python -m bench.gpu_engine [--model 8b] [--rows 1 16] [--sampling greedy] [--profile] [--json F]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from antiphon_llm.engine.boot import assemble_loop
from antiphon_llm.engine.cuda.contract import RunnerOptions
from antiphon_llm.engine.cuda.device import open_device
from antiphon_llm.engine.cuda.graphs import DecodeShape
from antiphon_llm.engine.cuda.runner import DeviceRunner
from antiphon_llm.engine.intake import ServedModel
from antiphon_llm.engine.runner import layer_caches
from antiphon_llm.engine.scheduler import Scheduler, SchedulerLimits
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.kvcache.pool import KvPool
from antiphon_llm.messages import Sampling, StepOutputs, Submit
from antiphon_llm.models.decoder import Decoder
from antiphon_llm.models.registry import build_model
from antiphon_nn.layers import DenseLinear

from bench import gpu_command
from bench.random_qwen3 import QWEN3_0_6B, QWEN3_8B, Qwen3Shape, RandomCheckpoint

COPY_BYTES_PER_SECOND = 4.25e12
MATRIX_FLOPS_PER_SECOND = 792e12

PROMPT, NEW_TOKENS, LONG_PROMPT, LONG_COUNT = 512, 256, 2048, 64
SHORT_PROMPTS = (32, 128, 512)
ENTRY_TOKENS = 16
CONTEXT = 4096

SHAPES = {"0.6b": QWEN3_0_6B, "8b": QWEN3_8B}
SAMPLINGS = {
    "greedy": {"temperature": 0.0},
    "filtered": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
}
PEER_TPOT = {
    "0.6b": {1: 1.674, 16: 1.891, 64: 3.038, 256: 7.786},
    "8b": {1: 5.151, 16: 5.553, 64: 7.050, 256: 14.879},
}
PEER_PREFILL = {"0.6b": 411_000.0, "8b": 42_900.0}
PEER_TTFT = {"0.6b": 18.9, "8b": 50.7}


class NotedEndpoint:
    """The front's end of the channel: hands requests in and notes when tokens come out."""

    def __init__(self) -> None:
        self.inbox: list[object] = []
        self.outputs: list[tuple[float, StepOutputs]] = []

    def drain(self) -> list[object]:
        """Messages for the engine."""
        messages, self.inbox = self.inbox, []
        return messages

    def wait(self, timeout: float | None) -> bool:
        """Never waits: the bench only steps while there is work."""
        return bool(self.inbox)

    def send(self, message: object) -> None:
        """Notes a step's outputs with their time."""
        if isinstance(message, StepOutputs):
            self.outputs.append((time.perf_counter(), message))

    def close(self, flush_seconds: float = 2.0) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class Cell:
    """One measured decode point; times in ms."""

    model: str
    rows: int
    sampling: str
    tpot: float
    floor: float
    products: float
    replay: float | None
    """One graph after another without the host between them."""
    peer: float | None
    steps: int


class Bench:
    """One model with everything around it."""

    def __init__(self, key: str, options: argparse.Namespace) -> None:
        self.key = key
        self.shape: Qwen3Shape = SHAPES[key]
        self.device = open_device(options.device)
        on, dtype = self.device.device, getattr(torch, options.dtype)
        rows = max(options.rows)
        self.model: Decoder = build_model(
            RandomCheckpoint(self.shape, on, dtype), device=on, dtype=dtype,
            fixed_tokens=rows * (1 + options.draft_depth),
        )  # fmt: skip
        if options.adapter_slots:
            self.model.serve_adapters(options.adapter_slots, options.adapter_rank)
        for projection in self.model.projections:
            if isinstance(projection, DenseLinear):
                projection.folded_rows = min(projection.folded_rows, options.fold_rows)
        entries = max(rows * (PROMPT + NEW_TOKENS), LONG_COUNT * LONG_PROMPT) // ENTRY_TOKENS
        entries += 4 * rows + CONTEXT // ENTRY_TOKENS
        self.tables = BlockTables(
            EntryAllocator(entries), rows=rows, entry_tokens=ENTRY_TOKENS, context_limit=CONTEXT
        )
        self.pool = KvPool(self.model.kv_fields(ENTRY_TOKENS), entries=entries, device=on)
        views = layer_caches(self.model.kv_rows, self.pool)
        self.runner = DeviceRunner(
            self.device,
            self.model,
            views,
            self.tables,
            RunnerOptions(
                max_rows=rows,
                step_tokens=options.step_tokens,
                overlap_depth=options.overlap_depth,
                graphs=not options.no_graphs,
                draft_depth=options.draft_depth,
                adapter_slots=options.adapter_slots,
            ),
        )
        started = time.perf_counter()
        self.runner.record_graphs()
        self.record_seconds = time.perf_counter() - started
        limits = SchedulerLimits(
            max_rows=rows,
            step_tokens=options.step_tokens,
            prefill_chunk=options.step_tokens - rows,
            entry_tokens=ENTRY_TOKENS,
            queue_limit=4096,
        )
        self.endpoint = NotedEndpoint()
        served = ServedModel(self.shape.vocabulary, CONTEXT, frozenset())
        self.loop = assemble_loop(
            self.endpoint,
            Scheduler(limits, self.tables),
            self.runner,
            served,
            overlap_depth=options.overlap_depth,
        )
        self._random = np.random.default_rng(1)
        self._serial = 0

    def serve(self, count: int, prompt: int, new: int, sampling: dict[str, Any]) -> float:
        """Runs ``count`` fresh requests to their end; when they were handed in."""
        messages = []
        for _ in range(count):
            self._serial += 1
            ids = self._random.integers(0, self.shape.vocabulary, prompt).tolist()
            settings = Sampling(max_tokens=new, ignore_eos=True, seed=self._serial, **sampling)
            messages.append(Submit(f"r{self._serial}", ids, settings, cache=False))
        return self.run(messages)

    def run(self, messages: Sequence[Submit]) -> float:
        """Runs requests to their end; when they were handed in."""
        self.endpoint.outputs.clear()
        self.endpoint.inbox += messages
        started = time.perf_counter()
        while self.endpoint.inbox or self.loop.busy:
            # What EngineLoop.run does while there is work.
            self.loop.take_messages()
            if self.loop.busy:
                self.loop.step()
                self.loop._publish()
        failed = [f for _, m in self.endpoint.outputs for f in m.finished if f.reason != "length"]
        if failed:
            raise RuntimeError(f"{len(failed)} requests failed, the first: {failed[0]}")
        return started

    def decode_cell(self, rows: int, sampling: str) -> Cell:
        """TPOT: the median time between steps that drew for all rows."""
        self.serve(rows, PROMPT, NEW_TOKENS, SAMPLINGS[sampling])
        full = [at for at, message in self.endpoint.outputs if len(message.token_ids) == rows]
        gaps = [(b - a) * 1e3 for a, b in pairwise(full)]
        return Cell(
            self.key,
            rows,
            sampling,
            statistics.median(gaps),
            self.floor(rows),
            self.products(rows),
            self.replay(rows),
            PEER_TPOT[self.key].get(rows),
            len(gaps),
        )

    def floor(self, rows: int) -> float:
        """ms that reading the weights and the mean context, or the products, take at least."""
        layers = self.model.spec.layers
        per_token = sum(2 * layer.kv_heads * layer.head_dim for layer in layers)
        context = PROMPT + NEW_TOKENS / 2
        read = self.model.weight_bytes + rows * context * per_token * self.model.dtype.itemsize
        flops = 2 * rows * self.model.weight_bytes / self.model.dtype.itemsize
        return 1e3 * max(read / COPY_BYTES_PER_SECOND, flops / MATRIX_FLOPS_PER_SECOND)

    def products(self, rows: int) -> float:
        """ms of the step's matrix products alone, through cuBLAS in one graph."""
        parts = [part for part in self.model.projections if isinstance(part, DenseLinear)]
        inputs = {part.weight.shape[1]: None for part in parts}
        like = {"dtype": self.model.dtype, "device": self.device.device}
        x = {width: torch.randn(rows, width, **like) for width in inputs}
        y = [torch.empty(rows, part.weight.shape[0], **like) for part in parts]

        def work() -> None:
            for part, out in zip(parts, y, strict=True):
                torch.mm(x[part.weight.shape[1]], part.weight.t(), out=out)

        with torch.inference_mode():
            graph = self.device.record(work)
            return self.replay_ms(graph.replay, 20)

    def replay(self, rows: int, width: int = 1) -> float | None:
        """ms of a decode step's graph, replayed over the last step's metadata."""
        graph = self.runner.graphs.recordings.graph(DecodeShape(rows, width))
        if graph is None:
            return None

        def several() -> None:
            for _ in range(10):
                graph.replay()

        with torch.inference_mode():
            return self.replay_ms(several, 5) / 10

    def replay_ms(self, run: Callable[[], None], repeats: int) -> float:
        """The median time of a call, each waited for."""
        times = []
        for _ in range(repeats + 3):
            self.device.synchronize()
            started = time.perf_counter()
            run()
            self.device.synchronize()
            times.append((time.perf_counter() - started) * 1e3)
        return statistics.median(times[3:])

    def prefill_rate(self) -> float:
        """Prompt tokens per second of 64 prompts of 2048 tokens."""
        self.serve(LONG_COUNT, LONG_PROMPT, 1, SAMPLINGS["greedy"])
        started = self.serve(LONG_COUNT, LONG_PROMPT, 1, SAMPLINGS["greedy"])
        return LONG_COUNT * LONG_PROMPT / (self.endpoint.outputs[-1][0] - started)

    def first_token(self, tokens: int) -> float:
        """ms to the first token of one prompt of so many, the median of five."""
        times = []
        for _ in range(6):
            started = self.serve(1, tokens, 1, SAMPLINGS["greedy"])
            at = next(at for at, message in self.endpoint.outputs if message.token_ids)
            times.append((at - started) * 1e3)
        return statistics.median(times[1:])

    def short_prompts(self) -> dict[int, tuple[float, float]]:
        """ms to the first token by prompt length, with prefill graphs and without."""
        recorded = [self.first_token(tokens) for tokens in SHORT_PROMPTS]
        self.runner.prefill_graphs.release()
        eager = [self.first_token(tokens) for tokens in SHORT_PROMPTS]
        found = list(zip(SHORT_PROMPTS, recorded, eager, strict=True))
        for tokens, graph, plain in found:
            print(f"  one prompt of {tokens:4d}: TTFT {graph:6.2f} ms, eager {plain:6.2f}")
        return {tokens: (graph, plain) for tokens, graph, plain in found}

    def profile(self, rows: int, prompt: int, outputs: int) -> None:
        """Prints the 20 kernels that take most of serving so many rows."""
        from torch.profiler import ProfilerActivity, profile

        self.serve(rows, prompt, 2, SAMPLINGS["filtered"])
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
            self.serve(rows, prompt, outputs, SAMPLINGS["filtered"])
        table = trace.key_averages().table(
            sort_by="self_cuda_time_total", row_limit=20, max_name_column_width=80
        )
        print(table, flush=True)

    def close(self) -> None:
        """Gives the device memory back."""
        self.runner.close()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs what was asked for and prints it as it comes."""
    raw: dict[str, Any] = {"cells": [], "prefill": {}, "ttft": {}, "short_ttft": {}, "counters": {}}
    for key in options.model:
        started = time.perf_counter()
        bench = Bench(key, options)
        print(
            f"{bench.shape.name}: {bench.model.weight_bytes / 1e9:.2f} GB of weights, "
            f"{bench.pool.bytes / 1e9:.2f} GB of KV, ready in "
            f"{time.perf_counter() - started:.1f} s; graphs took {bench.record_seconds:.1f} s "
            f"and {bench.runner.graph_bytes / 1e6:.0f} MB; refused {bench.runner.graphs_refused}",
            flush=True,
        )
        bench.serve(1, 64, 4, SAMPLINGS["greedy"])
        for rows in options.rows:
            for sampling in options.sampling:
                cell = bench.decode_cell(rows, sampling)
                raw["cells"].append(asdict(cell))
                print(_line(cell), flush=True)
            if options.profile:
                bench.profile(rows, PROMPT, 24)
        if not options.decode_only:
            raw["ttft"][key] = bench.first_token(LONG_PROMPT)
            raw["prefill"][key] = bench.prefill_rate()
            if options.profile:
                bench.profile(LONG_COUNT, LONG_PROMPT, 1)
            print(
                f"  one prompt of {LONG_PROMPT}: TTFT {raw['ttft'][key]:.1f} ms "
                f"(vLLM {PEER_TTFT[key]}); {LONG_COUNT} of them: "
                f"{raw['prefill'][key]:,.0f} tokens/s (vLLM {PEER_PREFILL[key]:,.0f})",
                flush=True,
            )
            raw["short_ttft"][key] = bench.short_prompts()
        raw["counters"][key] = bench.runner.counters
        print(f"  {bench.runner.counters}", flush=True)
        bench.close()
        del bench
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return raw


def _line(cell: Cell) -> str:
    peer = f"vLLM {cell.peer:.3f} ({cell.peer / cell.tpot:.2f} x)" if cell.peer else ""
    return (
        f"  {cell.rows:4d} rows {cell.sampling:8s} TPOT {cell.tpot:7.3f} ms   "
        f"floor {cell.floor:6.3f} ({cell.floor / cell.tpot:4.0%})   "
        f"graph alone {cell.replay or 0:6.3f}   products alone {cell.products:6.3f}   {peer}"
    )


def judge(raw: dict[str, Any]) -> int:
    """Prints the bars of what was measured; the exit status to use."""
    # Here, so that a machine without psutil can still measure.
    from bench.report import Report

    report = Report("engine_gpu")
    for cell in raw["cells"]:
        if cell["peer"] is not None:
            name = f"tpot_{cell['model'].replace('.', '_')}_{cell['rows']}_{cell['sampling']}"
            report.add(name, round(cell["tpot"], 3), cell)
    for key, value in raw["ttft"].items():
        report.add(f"ttft_{key.replace('.', '_')}", round(value, 1))
    for key, value in raw["prefill"].items():
        report.add(f"prefill_{key.replace('.', '_')}", round(value))
    return report.finish()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 16, 64, 256])
    parser.add_argument("--sampling", nargs="+", choices=SAMPLINGS, default=list(SAMPLINGS))
    parser.add_argument("--step-tokens", type=int, default=16384)
    parser.add_argument("--overlap-depth", type=int, choices=(0, 1), default=1)
    parser.add_argument("--no-graphs", action="store_true")
    parser.add_argument(
        "--fold-rows", type=int, default=1 << 10, help="rows up to which products are folded"
    )
    parser.add_argument("--decode-only", action="store_true", help="no prefill figures")
    parser.add_argument("--profile", action="store_true", help="the top kernels of each cell")
    parser.add_argument("--bars", action="store_true", help="judge against bars.toml")
    parser.add_argument("--json", type=Path, help="write the raw figures here")
    parser.add_argument("--draft-depth", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--adapter-slots", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--adapter-rank", type=int, default=16, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="bfloat16", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(gpu_command.run(parse(sys.argv[1:]), measure, judge))
