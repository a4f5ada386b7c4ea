"""`make bars-realtime`: the claims of realtime sessions that this machine can measure.

Name some to run only these: ``python -m bench.realtime_bars one eight``. ``--soak`` runs many
minutes at the clock's pace and an hour at fifty times it instead (`make soak-realtime`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop
from antiphon_cli.suite.runner import Suite
from antiphon_cli.suite.settings import EdgeSettings
from antiphon_cli.talk.http import open_client
from antiphon_cli.talk.speech import say
from antiphon_core.logs import configure_logging

from bench.realtime import gateway_alone
from bench.realtime.caller import Manners, Observer
from bench.realtime.run import Load, Run, run
from bench.realtime.summary import summarise
from bench.realtime.turns import Question
from bench.report import Report
from bench.rest.claims import ROOT, Outcome, run_tests

sys.path.insert(0, str(ROOT / "tests" / "unit" / "realtime"))

from oracle import Oracle  # pyright: ignore[reportMissingImports]

PORT_BASE = 18280
RUN_DIR = Path("run/bars-realtime")
QUESTIONS = (
    "What is the capital of France?",
    "How do plants make their food?",
    "Name three primary colours please.",
    "Why is the sky blue in the morning?",
    "Tell me a fact about the moon.",
    "When does the train to the city leave?",
    "What should I cook for my family tonight?",
    "Please tell me a story about a fox.",
)
TURNS = 24
CUTS = 24
"""Speech is made so far ahead that only one in eight of them meets a reply which is not over."""
LONG_ANSWERS = (QUESTIONS[1], QUESTIONS[7])
SESSIONS = 8
CONNECTIONS = 200
SECONDS = 15.0
SPEED = 50.0
RESETS = 1000
TRANSCRIBED = {"audio": {"input": {"transcription": {"model": "whisper-1"}}}}


@contextlib.asynccontextmanager
async def suite() -> AsyncIterator[tuple[str, list[Question]]]:
    """A suite with the default models: address of its sessions, and spoken questions."""
    settings = EdgeSettings(port=PORT_BASE, run_dir=RUN_DIR)
    async with Suite(settings) as running, open_client(running.url) as client:
        spoken = [Question(text, (await say(client, text)).samples, text) for text in QUESTIONS]
        url = running.url.replace("http", "ws", 1) + "/v1/realtime"
        await _call(url, spoken[:1], turns=2, tokens=16)
        yield url, spoken


async def _call(
    url: str,
    questions: list[Question],
    *,
    turns: int,
    tokens: int,
    sessions: int = 1,
    interrupt_after: float | None = None,
    observer: Callable[[int], Observer] = lambda number: lambda event: None,
) -> Run:
    manners = Manners(
        pause_s=0.3,
        interrupt_after_s=interrupt_after,
        session={**TRANSCRIBED, "max_output_tokens": tokens},
    )
    load = Load(url, questions, sessions=sessions, turns=turns, manners=manners)
    return await run(load, observer=observer)


async def one(report: Report) -> None:
    """A session alone: first audio, and the silence after an interruption."""
    async with suite() as (url, questions):
        calm = await _call(url, questions, turns=TURNS, tokens=16)
        found = summarise(calm.turns, calm.event_errors)
        first = found["legs_ms"]["stopped_to_first_audio"] or {"p50": 1e9, "p99": 1e9}
        _print_legs(found)
        report.add("first_audio_p50", first["p50"], found)
        report.add("first_audio_p99", first["p99"])
        share = found["continuity"]["share"]
        report.add("continuity_one", share)
        long = [question for question in questions if question.text in LONG_ANSWERS]
        hasty = await _call(url, long, turns=CUTS + 1, tokens=400, interrupt_after=0.5)
        found = summarise(hasty.turns, hasty.event_errors)
        cuts = found["interruptions_ms"] or {"max": 1e9, "count": 0}
        report.add("interrupted_while_made", cuts["count"], found)
        report.add("silence_after_speech", cuts["max"])


async def eight(report: Report) -> None:
    """Eight sessions at once: every event is right, and no reply is lost."""
    oracles: dict[int, Oracle] = {}
    wrong: list[str] = []

    def observer(number: int) -> Observer:
        oracle = oracles[number] = Oracle()

        def observe(event: dict[str, Any]) -> None:
            try:
                oracle.observe(event)
            except (AssertionError, KeyError, ValueError) as error:
                wrong.append(f"session {number}, {event['type']}: {error!r}")

        return observe

    async with suite() as (url, questions):
        calls = await _call(
            url, questions, sessions=SESSIONS, turns=2, tokens=16, observer=observer
        )
    found = summarise(calls.turns, calls.event_errors)
    _print_legs(found)
    report.add("eight_oracle_violations", len(wrong), {"wrong": wrong, **found})
    turns = found["turns"]
    report.add("eight_lost_replies", turns["asked"] - turns["completed"])
    report.add("eight_word_error_rate", found["word_error_rate"] or 0.0)


async def alone(report: Report) -> None:
    """The gateway's own part of the delay, with many connections on one core."""
    found = await gateway_alone.added_latency(CONNECTIONS, SECONDS)
    print("  gateway alone: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items()))
    report.add("added_p99", found["p99"], found)
    # Appends that a busy machine sends in heaps are cheap, and prove nothing.
    is_paced = found["generator_late_p99"] <= gateway_alone.FRAME_MS
    report.add("append_cpu", found["gateway_us_per_append"] if is_paced else float("inf"))


async def memory(report: Report) -> None:
    """What an hour of a connection leaves behind, at fifty times the clock."""
    found = await gateway_alone.memory_slope(4, SPEED, 108.0)
    report.add("memory_slope", found["mib_per_connection_hour"], found)


async def resets(report: Report) -> None:
    """A thousand connections that are reset at any byte."""
    test = "tests/rpc/realtime/test_resets.py::test_a_thousand_resets_leave_nothing"
    outcome = await _tests(test, "-m", "soak")
    report.add("clean_resets", RESETS * outcome.passed, vars(outcome))


async def walk(report: Report) -> None:
    """Ten thousand random walks over the reducer, judged by the oracle."""
    started = time.perf_counter()
    outcome = await _tests("tests/unit/realtime/test_oracle.py")
    report.add("walk_failures", len(outcome.failed), vars(outcome))
    report.add("walk_seconds", time.perf_counter() - started)


async def soak(report: Report) -> None:
    """Ten minutes at the clock's pace and an hour at fifty times it."""
    real = await gateway_alone.memory_slope(20, 1.0, 900.0)
    report.add("memory_slope_real_time", real["mib_per_connection_hour"], real)
    fast = await gateway_alone.memory_slope(4, SPEED, 3600 / SPEED * 1.5)
    report.add("memory_slope", fast["mib_per_connection_hour"], fast)


MEASUREMENTS: dict[str, Callable[[Report], Awaitable[None]]] = {
    "one": one,
    "eight": eight,
    "alone": alone,
    "memory": memory,
    "resets": resets,
    "walk": walk,
}


async def _tests(*selection: str) -> Outcome:
    outcome = await asyncio.to_thread(run_tests, *selection)
    for name in outcome.failed:
        print(f"  failed: {name}")
    return outcome


def _print_legs(found: dict[str, Any]) -> None:
    legs = {name: row for name, row in found["legs_ms"].items() if row is not None}
    print(
        "  ms p50/p99: " + ", ".join(f"{n} {r['p50']:.0f}/{r['p99']:.0f}" for n, r in legs.items())
    )


async def main(names: list[str], long: bool) -> int:
    """Runs the measurements; the exit status."""
    report = Report("realtime")
    for measure in [soak] if long else [MEASUREMENTS[name] for name in names]:
        await measure(report)
    return report.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.realtime_bars", description=__doc__)
    parser.add_argument("measurements", nargs="*", metavar="NAME", help=", ".join(MEASUREMENTS))
    parser.add_argument("--soak", action="store_true", help="the long runs instead")
    given = parser.parse_args()
    chosen = given.measurements or list(MEASUREMENTS)
    if unknown := set(chosen) - set(MEASUREMENTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
    configure_logging("bench", level="error")
    sys.exit(uvloop.run(main(chosen, given.soak)))
