"""What adapters cost a decode step on a CUDA device, with random weights, in process.

The engine of bench.gpu_engine with 8 slots, each with a random adapter of rank 16: the time per
output token of greedy rows that are all the model's own, that share one adapter, that go through
8 in turn, and of which half are the model's own. Beside it stand the graph alone, and what the
adapters' matrices take at the measured copy rate.

    python -m bench.gpu_adapters [--model 8b] [--rows 1 64] [--modules all] [--json F] [--bars]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from antiphon_kernels.lora import LowRank
from antiphon_llm.engine.adapters.registry import Adapter
from antiphon_llm.engine.cuda.graphs import DecodeShape
from antiphon_llm.messages import Sampling, Submit
from antiphon_llm.models.adapters import MODULES, module_shapes

from bench import gpu_command, gpu_engine
from bench.gpu_engine import COPY_BYTES_PER_SECOND, SHAPES, Bench

SLOTS, RANK = 8, 16
MODULE_SETS = {"all": MODULES, "attention": ("q_proj", "v_proj")}
MIXES = {"base": (0,), "1": (1,), "8": tuple(range(1, 9)), "half": (0, *range(1, 9))}
"""The slots that rows go through in turn; ``half`` puts the model's own between them."""


@dataclass(frozen=True)
class Cell:
    """One measured point; times in ms."""

    model: str
    modules: str
    rows: int
    mix: str
    tpot: float
    ratio: float
    """To the same rows without adapters."""
    replay: float | None
    matrices: float
    """What reading the active adapters' matrices takes at least."""


class LoadedAdapters:
    """Stands where an engine's desk does: adapters are there, by the number of their slot."""

    pending = due = False
    loaded, nbytes = SLOTS, 0

    def find(self, tenant: str, name: str) -> Adapter:
        """The adapter of a slot."""
        return Adapter(name, None, int(name), int(name), 0)

    def counters(self) -> dict[str, int]:
        """Nothing comes or goes."""
        return {}


class AdapterBench:
    """An engine whose slots are full."""

    def __init__(self, key: str, modules: str, options: argparse.Namespace) -> None:
        arguments = ["--model", key, "--rows", str(max(options.rows)), "--device", options.device,
                     "--dtype", options.dtype, "--adapter-slots", str(SLOTS),
                     "--adapter-rank", str(RANK), "--step-tokens",
                     str(options.step_tokens)]  # fmt: skip
        self.bench = Bench(key, gpu_engine.parse(arguments))
        self.key, self.modules = key, modules
        model = self.bench.model
        assert model.adapters is not None
        shapes = [module_shapes(model.spec, layer) for layer in model.spec.layers]
        chosen = MODULE_SETS[modules]
        generator = torch.Generator(self.bench.device.device).manual_seed(1)

        def random(rank: int, width: int) -> torch.Tensor:
            made = torch.randn(rank, width, generator=generator, device=self.bench.device.device)
            return made * width**-0.5

        self.bytes = 0
        for slot in range(1, SLOTS + 1):
            weights = [
                {
                    name: LowRank(
                        random(RANK, layer[name].inputs), random(RANK, layer[name].outputs)
                    )
                    for name in chosen
                }
                for layer in shapes
            ]
            model.adapters.install(slot, weights)
            self.bytes = model.dtype.itemsize * sum(
                part.a.numel() + part.b.numel() for layer in weights for part in layer.values()
            )
        self.bench.loop.intake.adapters = LoadedAdapters()  # type: ignore[assignment]

    def tpot(self, rows: int, mix: str) -> float:
        """The median time between steps that drew for all rows."""
        named, vocabulary = MIXES[mix], self.bench.shape.vocabulary
        messages = []
        for row in range(rows):
            slot = named[row % len(named)] if mix != "half" else (row % 2) * (1 + row // 2 % SLOTS)
            settings = Sampling(max_tokens=gpu_engine.NEW_TOKENS, ignore_eos=True, temperature=0.0)
            ids = [(row * 7919 + place * 31) % vocabulary for place in range(gpu_engine.PROMPT)]
            adapter = str(slot) if slot else ""
            messages.append(Submit(f"{mix}.{row}", ids, settings, adapter=adapter, cache=False))
        self.bench.run(messages)
        outputs = self.bench.endpoint.outputs
        full = [at for at, message in outputs if len(message.token_ids) == rows]
        return statistics.median((b - a) * 1e3 for a, b in pairwise(full))

    def cells(self, rows: int) -> list[Cell]:
        """Every mix at so many rows."""
        found: list[Cell] = []
        base = 0.0
        for mix, named in MIXES.items():
            self.tpot(rows, mix)
            tpot = self.tpot(rows, mix)
            base = base or tpot
            active = min(rows, len(set(named) - {0}))
            graphs = self.bench.runner.graphs
            shape = graphs.route(rows, adapters=active)
            found.append(
                Cell(
                    self.key, self.modules, rows, mix, tpot, tpot / base, self._replay(shape),
                    1e3 * active * self.bytes / COPY_BYTES_PER_SECOND,
                )
            )  # fmt: skip
        return found

    def _replay(self, shape: DecodeShape) -> float | None:
        graph = self.bench.runner.graphs.recordings.graph(shape)
        if graph is None:
            return None
        with torch.inference_mode():
            return self.bench.replay_ms(graph.replay, 20)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs what was asked for and prints it as it comes."""
    raw: dict[str, Any] = {"cells": [], "counters": {}}
    for key in options.model:
        for modules in options.modules:
            bench = AdapterBench(key, modules, options)
            print(
                f"{key}, {modules}: graphs took {bench.bench.record_seconds:.1f} s and "
                f"{bench.bench.runner.graph_bytes / 1e6:.0f} MB; refused "
                f"{bench.bench.runner.graphs_refused}",
                flush=True,
            )
            for rows in options.rows:
                for cell in bench.cells(rows):
                    raw["cells"].append(asdict(cell))
                    print(
                        f"  {cell.rows:4d} rows, {cell.mix:4s} TPOT {cell.tpot:7.3f} ms "
                        f"({cell.ratio:5.3f} x)   graph alone {cell.replay or 0:7.3f}   "
                        f"matrices {cell.matrices:6.3f}",
                        flush=True,
                    )
            raw["counters"][f"{key} {modules}"] = bench.bench.runner.counters
            print(f"  {bench.bench.runner.counters}", flush=True)
            bench.bench.close()
            del bench
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    return raw


def judge(raw: dict[str, Any]) -> int:
    """Prints the bars of what was measured; the exit status to use."""
    # Here, so that a machine without psutil can still measure.
    from bench.report import Report

    report = Report("adapters_gpu")
    for cell in raw["cells"]:
        if (cell["model"], cell["modules"], cell["rows"], cell["mix"]) == ("8b", "all", 64, "8"):
            report.add("tpot_8b_64_8", round(cell["ratio"], 3), cell)
    return report.finish()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", nargs="+", choices=SHAPES, default=["0.6b", "8b"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--modules", nargs="+", choices=MODULE_SETS, default=["all"])
    parser.add_argument("--step-tokens", type=int, default=8192)
    parser.add_argument("--bars", action="store_true", help="judge against bars.toml")
    parser.add_argument("--json", type=Path, help="write the raw figures here")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="bfloat16", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(gpu_command.run(parse(sys.argv[1:]), measure, judge))
