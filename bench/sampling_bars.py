"""`make bars-sampling`: what the draw rule claims and this machine can measure, one BAR line each.

Name some of the measurements to run only these: ``python -m bench.sampling_bars draws cost``.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from antiphon_core.logs import configure_logging
from antiphon_kernels.cpu import library
from antiphon_llm.checkpoint import resolve
from antiphon_llm.messages import Sampling
from antiphon_llm.sampler.draw import DrawRow, draw_windows
from antiphon_llm.sampler.row import SamplerRow

from bench import drafted_prompts, draw_statistics, speculation_cpu, structured
from bench.divergence import english
from bench.report import Report

DRAWS = 1_000_000
SAME_DRAWS = 400
VOCABULARY = 262_144
DRAWN_ROWS = 4
TURNS = 40
COPY_REPEATS = 2
SCHEMAS = 500
SCHEMA_ROWS = 32
MODEL = "smollm2-135m-instruct"


@contextmanager
def one_core() -> Iterator[None]:
    """Without teams of threads, whose meetings take time wherever other work has the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    library.set_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        library.set_threads(threads)


@one_core()
def draws(report: Report) -> None:
    """A million draws at each of twenty settings, and of a rare token, by chi-square."""
    values = {}
    same = 0
    for setting in draw_statistics.SETTINGS:
        values[setting.name] = draw_statistics.p_value(setting, DRAWS)
        same += draw_statistics.as_drawn(setting, SAME_DRAWS)
    report.add("chi_square_worst_p", min(values.values()), values)
    report.add("rare_token_p", draw_statistics.tail_p_value(DRAWS))
    report.add("stray_tokens", draw_statistics.stray_rate(2000, 248_320) * 2000)
    report.add("batch_form_settings_equal", same)


@one_core()
def cost(report: Report) -> None:
    """Milliseconds of one drawn row at the largest vocabulary, on one core."""
    plain = _milliseconds()
    few = [_milliseconds(top_k=64), _milliseconds(top_k=20, top_p=0.95, temperature=0.7)]
    others = {
        "greedy": _milliseconds(temperature=0.0),
        "top_p": _milliseconds(top_p=0.9),
        "penalties": _milliseconds(repetition_penalty=1.1, presence_penalty=0.2),
        "masked": _milliseconds(banned_token_ids=[5]),
        "logprobs": _milliseconds(logprobs=5),
    }
    report.add("cpu_row_unfiltered", plain, others | {"unfiltered": plain})
    report.add("cpu_row_top_k", max(few), few)


def drafts(report: Report) -> None:
    """Greedy answers to 200 prompts with each drafter against those without."""
    compared = drafted_prompts.compare_all()
    raw = [asdict(result) for result in compared]
    report.add("drafted_texts_different", max(result.different for result in compared), raw)
    itself = next(result for result in compared if result.drafter == "itself")
    report.add("own_drafts_accepted", itself.accepted / (itself.accepted + itself.rejected))


def copy(report: Report) -> None:
    """Tokens a second with n-gram drafting over those without, in turns of one engine."""
    path = resolve(MODEL, Path("~/.cache/antiphon").expanduser()).path
    ids, threads = english(path), len(os.sched_getaffinity(0))
    engine = speculation_cpu.Engine(path, threads, drafter="ngram", draft_depth=4)
    timings = {
        (workload, rows): speculation_cpu.measure(engine, workload, rows, ids, COPY_REPEATS)
        for workload in ("copy", "idle")
        for rows in speculation_cpu.ROWS
    }
    raw = [asdict(timing) for timing in timings.values()]
    report.add("ngram_copy_1_speed_up", timings["copy", 1].speed_up, raw)
    report.add("ngram_copy_4_speed_up", timings["copy", 4].speed_up)
    report.add("ngram_idle_speed", min(timings["idle", rows].speed_up for rows in (1, 4)))


def constrained(report: Report) -> None:
    """Outputs under random schemas, 32 at a time, three models, with and without drafting."""
    default = structured.default_model()
    with tempfile.TemporaryDirectory() as folder:
        models = (*structured.random_models(Path(folder), default), default)
        outcomes = [
            outcome
            for model in models
            for outcome in structured.valid(model, count=SCHEMAS, rows=SCHEMA_ROWS)
        ]
    raw = [asdict(outcome) for outcome in outcomes]
    wrong = sum(outcome.invalid + outcome.failed for outcome in outcomes)
    report.add("structured_wrong", wrong, raw)
    report.add("structured_valid_or_cut", sum(item.valid + item.cut for item in outcomes))
    report.add("structured_longest_blank", max(item.longest_blank for item in outcomes))


MEASUREMENTS: dict[str, Callable[[Report], None]] = {
    "draws": draws,
    "cost": cost,
    "copy": copy,
    "drafts": drafts,
    "constrained": constrained,
}


def _milliseconds(**fields: Any) -> float:
    """Of one row of a step that draws some: in the best of many turns, since whatever else the
    machine does only adds."""
    random = np.random.default_rng(0)
    logits = random.normal(0, 2.5, (DRAWN_ROWS, VOCABULARY)).astype(np.float32)
    rows = [
        DrawRow(
            SamplerRow(
                Sampling(**{"seed": number, **fields}), choice=0,
                prompt_ids=random.integers(0, VOCABULARY, 500).tolist(), end_ids=[1],
                vocabulary=VOCABULARY,
            ),
            500,
        )
        for number in range(DRAWN_ROWS)
    ]  # fmt: skip
    times = []
    for _ in range(TURNS):
        started = time.perf_counter()
        draw_windows(logits, rows)
        times.append((time.perf_counter() - started) * 1000 / DRAWN_ROWS)
    return min(times)


def main(names: list[str]) -> int:
    """Runs the measurements; the exit status."""
    report = Report("sampling")
    for name in names:
        MEASUREMENTS[name](report)
    return report.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.sampling_bars", description=__doc__)
    parser.add_argument("measurements", nargs="*", metavar="NAME", help=", ".join(MEASUREMENTS))
    chosen = parser.parse_args().measurements or list(MEASUREMENTS)
    if unknown := set(chosen) - set(MEASUREMENTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
    configure_logging("bench", level="error")
    sys.exit(main(chosen))
