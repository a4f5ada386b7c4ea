"""What n-gram drafting is worth on this machine's cores, with a default model.

One engine takes the same requests in turns with and without its drafter (plain, drafting,
drafting, plain), so that both meet the same minutes and memory; two engines of one process differ
by more than an idle drafter costs. *copy* continues a text
that the prompt holds already; *idle* draws at a high temperature, where hardly anything repeats.
Both must draw the same tokens, or nothing is reported.

    python -m bench.speculation_cpu [--model smollm2-135m-instruct] [--depth 4] [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from antiphon_core.logs import configure_logging
from antiphon_llm.checkpoint import resolve
from antiphon_llm.engine.boot import BootPhases, boot
from antiphon_llm.messages import EngineConfig, Sampling, Submit

from bench.divergence import english
from bench.llm_cpu import Silent

PASSAGE, BEGUN, OUTPUT = 240, 24, 160
ROWS = (1, 4)
WORKLOADS = ("copy", "idle")


@dataclass(frozen=True)
class Timing:
    """One workload at one number of rows; rates are medians."""

    workload: str
    rows: int
    plain_tokens_s: float
    drafting_tokens_s: float
    speed_up: float
    """Median over the turns of a turn's own ratio."""
    accepted: float
    """Share of the proposed drafts."""
    tokens_per_row_step: float


class Engine:
    """An engine of this process; serves a workload to its end."""

    def __init__(self, path: Path, threads: int, **fields: Any) -> None:
        config = EngineConfig(
            model_path=str(path), context_limit=1024, threads=threads, prefix_cache=False,
            **fields,
        )  # fmt: skip
        endpoint = Silent()
        self.loop = boot(config, endpoint, BootPhases(endpoint))
        self._speculation = self.loop.speculation

    def serve(self, submits: list[Submit], *, drafting: bool) -> tuple[float, dict[str, list[int]]]:
        """Tokens a second from when all prompts are done, and every request's tokens."""
        self.loop.speculation = self._speculation if drafting else None
        tokens: dict[str, list[int]] = {submit.request_id: [] for submit in submits}
        for submit in submits:
            self.loop.intake.submit(submit)
        started, before = 0.0, 0
        while self.loop.busy:
            self.loop.step()
            outputs = self.loop.outbox.flush()
            if outputs is None:
                continue
            for name, token in zip(outputs.request_ids, outputs.token_ids, strict=True):
                tokens[name].append(token)
            if not started and all(tokens.values()):
                started, before = time.perf_counter(), sum(map(len, tokens.values()))
        drawn = sum(map(len, tokens.values())) - before
        return drawn / (time.perf_counter() - started), tokens

    @property
    def drafted(self) -> tuple[int, int, int, int]:
        """Proposed, accepted, row steps and tokens so far."""
        assert self._speculation is not None
        telemetry = self._speculation.telemetry
        counts = telemetry.counters()
        return (
            telemetry.proposed, telemetry.accepted, counts["draft: row steps"],
            counts["draft: tokens"],
        )  # fmt: skip


def requests(workload: str, rows: int, ids: list[int]) -> list[Submit]:
    """The same for every turn."""
    submits = []
    for row in range(rows):
        passage = ids[row * 60 : row * 60 + PASSAGE]
        if workload == "copy":
            prompt = passage + passage[:BEGUN]
            sampling = Sampling(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
        else:
            prompt = passage
            sampling = Sampling(temperature=1.6, seed=row, max_tokens=OUTPUT, ignore_eos=True)
        submits.append(Submit(f"{workload}-{row}", prompt, sampling))
    return submits


def measure(engine: Engine, workload: str, rows: int, ids: list[int], repeats: int) -> Timing:
    """Turns of plain, drafting, drafting, plain; the first turn warms up."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    ratios = []
    before = engine.drafted
    for turn in range(repeats + 1):
        texts, seen = [], {False: 0.0, True: 0.0}
        for drafting in (False, True, True, False):
            rate, tokens = engine.serve(requests(workload, rows, ids), drafting=drafting)
            texts.append(tokens)
            seen[drafting] += rate / 2
        if any(text != texts[0] for text in texts):
            raise RuntimeError(f"{workload}: drafting changed the text")
        if turn:
            for drafting, rate in seen.items():
                rates[drafting].append(rate)
            ratios.append(seen[True] / seen[False])
        else:
            before = engine.drafted
    proposed, accepted, steps, tokens = (
        now - then for now, then in zip(engine.drafted, before, strict=True)
    )
    return Timing(
        workload, rows, round(statistics.median(rates[False]), 1),
        round(statistics.median(rates[True]), 1), round(statistics.median(ratios), 3),
        round(accepted / max(proposed, 1), 3), round(tokens / steps, 3),
    )  # fmt: skip


def main() -> None:
    """Prints one JSON line for each workload and number of rows."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--model", default="smollm2-135m-instruct")
    options.add_argument("--depth", type=int, default=4)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    options.add_argument("--fixed", action="store_true", help="always the whole depth")
    options.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    given = options.parse_args()
    configure_logging("bench", level="error")
    path = resolve(given.model, Path("~/.cache/antiphon").expanduser()).path
    ids = english(path)
    engine = Engine(path, given.threads, drafter="ngram", draft_depth=given.depth,
                    draft_adaptive=not given.fixed)  # fmt: skip
    for rows in ROWS:
        for workload in given.workloads:
            timing = measure(engine, workload, rows, ids, given.repeats)
            print(json.dumps(asdict(timing)), flush=True)


if __name__ == "__main__":
    main()
