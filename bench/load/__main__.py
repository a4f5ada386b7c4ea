"""``python -m bench.load``: one run, its table on standard output, its JSON where asked."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import uvloop
from antiphon_core.logs import configure_logging
from rich.console import Console
from rich.table import Table

from bench.load import options as line
from bench.load.drive import drive, warm_up
from bench.load.progress import RunView
from bench.load.record import RequestFailed
from bench.load.summary import summarise
from bench.report import commit, machine

BUSY_CLIENT = 0.7
"""Share of a core from which on the client's own queueing shows in what it measures."""


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Warms up, runs, and returns the result as it is written.

    Raises:
        ValueError: options that make no sense.
        RequestFailed: the target does not answer.
    """
    workload, arrivals = line.workload(options), line.arrivals(options)
    target = line.target(options, workload)
    try:
        facts = await target.open()
        if options.warm_up:
            await warm_up(target, workload, options.warm_up, options.clients)
        wall, cpu = time.perf_counter(), time.process_time()
        with RunView(Console(stderr=True), arrivals) as view:
            run = await drive(target, workload, arrivals, show=view.show)
        busy = (time.process_time() - cpu) / (time.perf_counter() - wall)
    finally:
        await target.close()
    return {
        "kind": "load",
        "label": options.label,
        "commit": commit(),
        "machine": machine(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "options": {
            name: str(value) if isinstance(value, Path) else value
            for name, value in vars(options).items()
        },
        "target": facts,
        "token_source": target.token_source,
        "client_cpu_share": busy,
        **summarise(run.records, line.objectives(options)),
    }


def print_result(result: dict[str, Any]) -> None:
    """The figures for people."""
    console = Console(soft_wrap=True)
    table = Table("", "mean", "p50", "p90", "p99", "max", title=result["label"] or None)
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        if (row := result[name]) is not None:
            cells = (f"{row[key]:.2f}" for key in ("mean", "p50", "p90", "p99", "max"))
            table.add_row(name.replace("_ms", ", ms").upper().replace("MS", "ms"), *cells)
    console.print(table)
    outcomes = ", ".join(f"{count} {name}" for name, count in result["requests"].items())
    console.print(f"requests: {outcomes}", highlight=False)
    for reason, row in result["errors"].items():
        console.print(f"  {row['count']} x {reason}: {row['example']}", highlight=False)
    rates = ", ".join(f"{value:.1f} {name}" for name, value in result["rates"].items())
    console.print(f"rates over {result['window_s']:.1f} s: {rates}", highlight=False)
    good = result["goodput"]
    console.print(
        f"goodput: {good['requests']} requests, {good['share']:.1%}, "
        f"{good['requests_per_s']:.2f} a second under {good['objectives']}",
        highlight=False,
    )
    if result["client_cpu_share"] > BUSY_CLIENT:
        console.print(
            f"[bold]the client itself was busy for {result['client_cpu_share']:.0%} of a core: "
            "latencies hold its own delays; share the load among several processes"
        )
    console.print(f"tokens: {result['tokens']} ({result['token_source']})", highlight=False)


def main() -> int:
    """Entry point; the exit status is 1 when a request was lost, 130 after Ctrl-C."""
    configure_logging("load")
    parser = line.parser()
    options = parser.parse_args()
    try:
        result = uvloop.run(measure(options))
    except ValueError as error:
        parser.error(str(error))
    except RequestFailed as error:
        sys.exit(f"{options.address}: {error}")
    except KeyboardInterrupt:
        return 130
    print_result(result)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if result["requests"]["lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
