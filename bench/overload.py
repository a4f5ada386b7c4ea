"""More work than the llm service can do, and what must hold while it is refused.

Shared by `make bars-engine` (a minute) and the soak test (ten).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.load import options
from bench.load.drive import Arrivals, Run, drive
from bench.load.targets.llm_service import GenerateManyTarget
from bench.load.workload import Workload

PATIENCE_S = 900.0
"""A request without its end after this time is lost. Longer than the service's own deadline for
requests that name none: batch work may wait that long for the interactive work to pause."""

FACTOR = 2.0
"""Offered load over the measured capacity."""

SERVICE_FLAGS = (
    *("--context-limit", "1024", "--kv-entries", "512", "--max-rows", "8"),
    *("--queue-limit", "16"),
)
"""A pool that the load fills, and a queue short enough to be full at once."""

REFUSALS = ("QUEUE_FULL", "KV_FULL", "MEMORY_PRESSURE")
"""Reasons of a refusal for load; each promises RESOURCE_EXHAUSTED and a retry time."""

EXPECTED_ENDS = (*REFUSALS, "DEADLINE", "OVERLOADED")
"""Reasons by which a request may fail in this workload."""


WORK_FLAGS = (
    *("--prompt", "lognormal:80:0.8:600", "--output", "uniform:4:48", "--temperature", "0.8"),
    *("--prefixes", "4", "--prefix-tokens", "64", "--prefix-share", "0.5"),
    *("--cancel-share", "0.2", "--deadline-share", "0.2", "--deadline", "0.2", "3"),
    *("--tenants", "3", "--batch-share", "0.2"),
)
"""Chats of several tenants and classes; a share leaves early or has little time."""


def mixed_work(seed: int) -> Workload:
    """The requests of WORK_FLAGS."""
    line = ("many", "", "--seconds", "1", *WORK_FLAGS, "--seed", str(seed))
    return options.workload(options.parser().parse_args(line))


def client_command(
    address: str, rate: float, seconds: float, seed: int, result: Path
) -> tuple[str, ...]:
    """A process that offers part of the load; it writes its result at the end."""
    return (
        *(sys.executable, "-m", "bench.load", "many", address, *WORK_FLAGS),
        *("--rate", f"{rate:g}", "--seconds", f"{seconds:g}", "--patience", f"{PATIENCE_S:g}"),
        *("--seed", str(seed), "--json", str(result)),
    )


async def capacity(address: str, seconds: float, clients: int = 16) -> float:
    """Completed requests a second with every row busy and nobody leaving."""
    work = replace(mixed_work(1), cancel_share=0.0, deadline_share=0.0, batch_share=0.0)
    run = await _driven(address, work, Arrivals(clients=clients, seconds=seconds))
    window = max(r.done for r in run.records) - min(r.sent for r in run.records)
    return run.count("completed") / window


async def overload(
    address: str, rate: float, seconds: float, show: Callable[[Run], None] = lambda run: None
) -> Run:
    """Offers ``rate`` requests a second whatever becomes of them."""
    arrivals = Arrivals(rate=rate, seconds=seconds, patience_s=PATIENCE_S)
    return await _driven(address, mixed_work(2), arrivals, show)


def broken_refusals(errors: dict[str, dict[str, Any]]) -> int:
    """Refusals that lack the status or the retry time that callers rely on.

    Args:
        errors: of a summary.
    """
    broken = 0
    for reason in REFUSALS:
        row = errors.get(reason)
        if row is not None:
            wrong = row["statuses"] != ["RESOURCE_EXHAUSTED"]
            broken += row["count"] if wrong else row["count"] - row["with_retry"]
    return broken


def refused(errors: dict[str, dict[str, Any]]) -> int:
    """How many requests were refused for load."""
    return sum(errors[reason]["count"] for reason in REFUSALS if reason in errors)


def unexpected(errors: dict[str, dict[str, Any]]) -> Sequence[str]:
    """Reasons that this workload cannot explain."""
    return [reason for reason in errors if reason not in EXPECTED_ENDS]


async def _driven(
    address: str,
    work: Workload,
    arrivals: Arrivals,
    show: Callable[[Run], None] = lambda run: None,
) -> Run:
    target = GenerateManyTarget(address, work)
    try:
        await target.open()
        return await drive(target, work, arrivals, show=show)
    finally:
        await target.close()
