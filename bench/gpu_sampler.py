"""Time of the device draw on a CUDA device, beside what torch and flashinfer need.

For each row count and each kind of settings: microseconds of one captured call, and the share
of the floor, which is reading the logits once at the measured 4.25 TB/s. First the tokens of
a mixed slate are compared with the reference; no time is printed when they differ.

    python -m bench.gpu_sampler [--rows 1 64 256] [--vocabulary 151936] [--bf16] [--no-peers]
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable

import torch
from antiphon_kernels.sample import RowSettings, Workspace, reference, sample
from antiphon_kernels.sample.cases import (
    GREEDY,
    MIN_P,
    MIXED,
    NUCLEUS,
    PLAIN,
    SEARCHED,
    USUAL,
    WIDE_NUCLEUS,
    Knobs,
    peaked_logits,
    settings_of,
)

BANDWIDTH = 4.25e12
"""Bytes per second that a H200 reads, measured."""
KINDS: dict[str, tuple[Knobs, ...]] = {
    "greedy": (GREEDY,),
    "temperature": (PLAIN,),
    "top_k 50, top_p 0.95": (USUAL,),
    "top_p 0.95": (NUCLEUS,),
    "min_p 0.05": (MIN_P,),
    "mixed": MIXED[:5],
    "wide nucleus": (WIDE_NUCLEUS,),
    "searched cuts": SEARCHED,
}
GOALS = {
    ("top_k 50, top_p 0.95", 1): 30.0,
    ("top_k 50, top_p 0.95", 64): 168.0,
    ("top_k 50, top_p 0.95", 256): 400.0,
}
"""Microseconds: 4 % of a 4.2 ms step at 64 rows."""


def microseconds(run: Callable[[], object], calls: int = 20, replays: int = 5) -> float:
    """Median time of one call, of ``calls`` captured in one graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            run()
    times = []
    for _ in range(replays + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / calls)
    return sorted(times[1:])[replays // 2]


class Slate:
    """Logits, settings and outputs of one measured slate."""

    def __init__(self, knobs: tuple[Knobs, ...], logits: torch.Tensor) -> None:
        rows, vocabulary = logits.shape
        self.logits = logits
        self.settings = settings_of(tuple(knobs[n % len(knobs)] for n in range(rows)), DEVICE)
        self.out, self.faults = torch.zeros((2, rows), dtype=torch.int32, device=DEVICE)
        self.workspace = Workspace.allocate(rows, vocabulary, DEVICE)

    def draw(self) -> None:
        sample(self.logits, self.settings, self.out, self.faults, self.workspace)


DEVICE = torch.device("cuda")


def differing_tokens(vocabulary: int) -> int:
    """Rows of a mixed slate whose token is neither the reference's nor nearly tied with it."""
    knobs = MIXED + SEARCHED
    slate = Slate(knobs, peaked_logits(len(knobs), vocabulary, DEVICE, seed=1))
    slate.draw()
    host = RowSettings.allocate(len(knobs))
    host.buffer.copy_(slate.settings.buffer)
    differing = 0
    for index, row in enumerate(slate.logits.cpu()):
        scores = reference.noisy_scores(row, [column[index] for column in host.columns()])
        token, best = int(slate.out[index]), float(scores.max())
        differing += float(scores[token]) < best - 2e-6 * max(1.0, abs(best))
    return differing


def torch_draw(logits: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """topk, softmax, nucleus and multinomial over its survivors: torch's usual chain."""
    values, ids = (logits / 0.8).topk(top_k)
    masses = values.softmax(-1)
    masses = masses.where(masses.cumsum(-1) - masses < top_p, 0.0)
    return ids.gather(1, torch.multinomial(masses, 1))


def peers(logits: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Other samplers on the same logits, for top_k 50 and top_p 0.95."""
    found: dict[str, Callable[[], object]] = {
        "torch topk, multinomial": lambda: torch_draw(logits, 50, 0.95),
        "torch argmax": lambda: logits.argmax(-1),
    }
    try:
        flashinfer = importlib.import_module("flashinfer.sampling")
    except ImportError as error:
        print(f"flashinfer: not measured ({error})")
        return found
    found["flashinfer top_k_top_p"] = lambda: flashinfer.top_k_top_p_sampling_from_logits(
        logits / 0.8, 50, 0.95
    )
    found["flashinfer softmax, top_k_top_p"] = lambda: flashinfer.top_k_top_p_sampling_from_probs(
        torch.softmax(logits / 0.8, -1), 50, 0.95
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--bf16", action="store_true", help="bf16 logits; fp32 by default")
    parser.add_argument("--no-peers", action="store_true")
    arguments = parser.parse_args()
    started = time.perf_counter()
    differing = differing_tokens(arguments.vocabulary)
    print(f"first call with compilation and check: {time.perf_counter() - started:.1f} s")
    if differing:
        print(f"{differing} tokens differ from the reference: no times")
        return 1
    dtype = torch.bfloat16 if arguments.bf16 else torch.float32
    # A few distinct rows suffice: drawing normal numbers on the host takes seconds.
    distinct = peaked_logits(16, arguments.vocabulary, DEVICE).to(dtype)
    for rows in arguments.rows:
        logits = distinct.repeat(-(-rows // 16), 1)[:rows].contiguous()
        floor = logits.nbytes / BANDWIDTH * 1e6
        print(f"\n{rows} rows x {arguments.vocabulary} {dtype}: floor {floor:.1f} us")
        runs = {kind: Slate(knobs, logits).draw for kind, knobs in KINDS.items()}
        own = len(runs)
        if not arguments.no_peers:
            runs |= peers(logits)
        for place, (name, run) in enumerate(runs.items()):
            try:
                took = microseconds(run)
            except RuntimeError as error:
                if place < own:
                    raise
                print(f"  {name:34s} not measured ({str(error).splitlines()[0][:80]})")
                continue
            goal = GOALS.get((name, rows))
            verdict = (
                "" if goal is None else f"  goal {goal:.0f} {'pass' if took <= goal else 'FAIL'}"
            )
            print(f"  {name:34s} {took:8.1f} us  {floor / took:6.1%} of the floor{verdict}")
    print(f"total {time.perf_counter() - started:.1f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
