"""Our engine against llama.cpp on this machine's cores, on the two default models.

For each model: decode at 1 and at 8 streams and prefill of 512 tokens, in turns with the peer so
that both meet the same minutes; the share of the floor that memory and multipliers set; and
what rounded activations cost, as KL divergence to the float32 products over English text.

    python -m bench.llm_cpu --peer-python PATH [--models smollm2-135m-instruct] [--repeats 7]

Without a peer its columns stay empty and its bars are not judged.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import antiphon_kernels
from antiphon_core.logs import configure_logging
from antiphon_kernels.cpu import library
from antiphon_llm.checkpoint import resolve
from antiphon_llm.engine.boot import BootPhases, boot
from antiphon_llm.engine.loop import EngineLoop
from antiphon_llm.messages import EngineConfig, Sampling, Submit
from antiphon_llm.models.decoder import Decoder
from antiphon_llm.models.registry import build_model
from antiphon_nn.checkpoint import open_checkpoint

from bench.divergence import KL_TOKENS, divergence, english
from bench.kernels_cpu import read_bandwidth
from bench.report import Report

MODELS = {"smollm2-135m-instruct": "smollm2", "gemma-3-270m": "gemma3"}
PREFILL_TOKENS = 512
PROMPT_TOKENS = 128
DECODE_STEPS = 48
STREAMS = (1, 8)


@dataclass
class Measured:
    """Seconds of one quantity, ours and the peer's, in the order of the turns."""

    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """How many times faster than the peer, by medians; NaN without one."""
        if not self.peer:
            return math.nan
        return statistics.median(self.peer) / statistics.median(self.ours)


class Silent:
    """An endpoint that drops what the engine says."""

    def drain(self) -> list[object]:
        return []

    def wait(self, timeout: float | None) -> bool:
        return True

    def send(self, message: object) -> None: ...

    def close(self, flush_seconds: float = 2.0) -> None: ...


class Engine:
    """Our engine in this process, as its own loop runs it."""

    def __init__(self, path: Path, threads: int, products: str) -> None:
        config = EngineConfig(
            model_path=str(path),
            context_limit=2048,
            prefill_chunk=PREFILL_TOKENS,
            threads=threads,
            products=products,
            prefix_cache=False,
        )
        endpoint = Silent()
        self._loop: EngineLoop = boot(config, endpoint, BootPhases(endpoint))

    def prefill(self, ids: list[int]) -> float:
        """Seconds from the submission to the first token of one row."""
        started = time.perf_counter()
        self._submit({"row": ids}, 1)
        while self._loop.live:
            self._step()
        return time.perf_counter() - started

    def decode(self, prompts: Sequence[list[int]], steps: int) -> list[float]:
        """Seconds of each step that draws one token for every row."""
        rows = {f"row-{index}": ids for index, ids in enumerate(prompts)}
        self._submit(rows, steps + len(rows) + 2)
        begun: set[str] = set()
        while begun != set(rows):
            begun |= set(self._step())
        spent = []
        for _ in range(steps):
            started = time.perf_counter()
            drawn = self._step()
            spent.append(time.perf_counter() - started)
            if len(drawn) != len(rows):
                raise RuntimeError(f"a decode step drew {len(drawn)} tokens of {len(rows)}")
        while self._loop.live:
            self._step()
        return spent

    def _submit(self, rows: dict[str, list[int]], tokens: int) -> None:
        sampling = Sampling(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        for name, ids in rows.items():
            self._loop.intake.submit(Submit(name, ids, sampling))

    def _step(self) -> list[str]:
        """The rows that drew a token."""
        self._loop.step()
        outputs = self._loop.outbox.flush()
        return [] if outputs is None else list(outputs.request_ids)


class PeerProcess:
    """bench/llm_peer.py under the Python that has the peer."""

    def __init__(self, python: str, path: Path, threads: int, rows: int) -> None:
        script = Path(__file__).with_name("llm_peer.py")
        command = [python, str(script), str(path), "--threads", str(threads), "--rows", str(rows)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.about: dict[str, str] = self._answer()

    def prefill(self, ids: list[int]) -> float:
        return self._ask({"prefill": ids})

    def decode(self, prompts: Sequence[list[int]], steps: int) -> list[float]:
        return self._ask({"decode": prompts, "steps": steps})

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended with status {self._process.wait()}")
        return json.loads(line)


def measure(
    engine: Engine, peer: PeerProcess | None, ids: list[int], repeats: int
) -> dict[str, Measured]:
    """Every quantity in turns, ours first; each turn's decode counts with its median step."""
    results = {"prefill": Measured(), **{f"decode_{rows}": Measured() for rows in STREAMS}}
    prompts = [ids[row * 8 : row * 8 + PROMPT_TOKENS] for row in range(max(STREAMS))]
    for turn in range(repeats + 1):
        for side in (engine, peer):
            if side is None:
                continue
            # The first turn warms both up.
            found = [(name, "ours" if side is engine else "peer") for name in results if turn]
            spent = [side.prefill(ids[:PREFILL_TOKENS])]
            spent += [statistics.median(side.decode(prompts[:n], DECODE_STEPS)) for n in STREAMS]
            for (name, owner), seconds in zip(found, spent, strict=False):
                getattr(results[name], owner).append(seconds)
    return results


@dataclass(frozen=True)
class Floor:
    """What this machine gave in this run."""

    read_gb_s: float
    byte_products_s: float


def report_model(
    report: Report, short: str, results: dict[str, Measured], model: Decoder, floor: Floor
) -> None:
    """Prints the table's lines and judges the bars."""
    products = sum(layer_products(model))
    for name, measured in results.items():
        seconds = statistics.median(measured.ours)
        rows = PREFILL_TOKENS if name == "prefill" else int(name.rpartition("_")[2])
        least = model.weight_bytes / floor.read_gb_s / 1e9
        if name == "prefill":
            least = PREFILL_TOKENS * products / floor.byte_products_s
        peer = f"{rows / statistics.median(measured.peer):8.0f}" if measured.peer else "       -"
        print(
            f"  {short:8} {name:9} {seconds * 1000:8.2f} ms {rows / seconds:8.0f} tok/s "
            f"(peer {peer} tok/s, {measured.ratio:5.2f} x)   floor {least / seconds:4.0%}"
        )
        raw = vars(measured) | {"floor_seconds": least}
        if measured.peer:
            report.add(f"{short}_{name}_ratio", measured.ratio, raw)
        else:
            print(f"no peer: engine_cpu.{short}_{name}_ratio is not judged")


def layer_products(model: Decoder) -> list[int]:
    """Multiply-adds of one token in each layer's matrices; the head runs on sampled rows only."""
    spec = model.spec
    hidden, inner = spec.hidden_size, spec.intermediate_size
    return [
        hidden * layer.head_dim * (2 * layer.heads + 2 * layer.kv_heads) + 3 * hidden * inner
        for layer in spec.layers
    ]


def main() -> int:
    """Measures every model; the exit status."""
    parser = argparse.ArgumentParser(description="Our engine against llama.cpp on CPU.")
    parser.add_argument("--peer-python", default="", help="a Python that has llama-cpp-python")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--products", default="auto")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    configure_logging("bench", level="error")
    antiphon_kernels.set_threads(options.threads)
    native = library.native()
    if native is None:
        raise SystemExit(f"no native kernels: {library.unavailable_reason()}")
    floor = Floor(read_bandwidth(options.threads), native.byte_product_rate())
    print(
        f"{native.isa}, {options.threads} threads, read bandwidth {floor.read_gb_s:.1f} GB/s, "
        f"byte products {floor.byte_products_s / 1e12:.2f} T/s, load {os.getloadavg()[0]:.1f}"
    )
    report = Report("engine_cpu")
    for alias in options.models:
        path = resolve(alias, Path("~/.cache/antiphon")).path
        ids = english(path)
        engine = Engine(path, options.threads, options.products)
        peer = None
        if options.peer_python:
            peer = PeerProcess(options.peer_python, path, options.threads, max(STREAMS))
            print(f"peer: llama-cpp-python {peer.about['version']}, {peer.about['features']}")
        results = measure(engine, peer, ids, options.repeats)
        if peer is not None:
            peer.close()
        model = build_model(open_checkpoint(str(path)))
        report_model(report, MODELS[alias], results, model, floor)
        report.add(f"{MODELS[alias]}_kl", divergence(model, ids[:KL_TOKENS]))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
