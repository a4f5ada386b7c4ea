"""More work than the llm service can do, and what must hold while it is refused.

Shared by `make bars-engine` (a minute) and the soak test (ten).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bench.load.drive import Arrivals, Run, drive
from bench.load.lengths import LogNormal, Uniform
from bench.load.targets.llm_service import GenerateManyTarget
from bench.load.workload import Workload

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


def mixed_work(seed: int, *, impatient: bool = True) -> Workload:
    """Chats of several tenants and classes; a share leaves early or has little time."""
    return Workload(
        prompt_tokens=LogNormal(80, 0.8, 600),
        output_tokens=Uniform(4, 48),
        prefixes=4,
        prefix_tokens=64,
        prefix_share=0.5,
        cancel_share=0.2 if impatient else 0.0,
        deadline_share=0.2 if impatient else 0.0,
        deadline_s=(0.2, 3.0),
        tenants=3,
        batch_share=0.2 if impatient else 0.0,
        temperature=0.8,
        seed=seed,
    )


async def capacity(address: str, seconds: float, clients: int = 16) -> float:
    """Completed requests a second with every row busy and nobody leaving."""
    work = mixed_work(1, impatient=False)
    run = await _driven(address, work, Arrivals(clients=clients, seconds=seconds))
    window = max(r.done for r in run.records) - min(r.sent for r in run.records)
    return run.count("completed") / window


async def overload(
    address: str, rate: float, seconds: float, show: Callable[[Run], None] = lambda run: None
) -> Run:
    """Offers ``rate`` requests a second whatever becomes of them."""
    arrivals = Arrivals(rate=rate, seconds=seconds, patience_s=120.0)
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
