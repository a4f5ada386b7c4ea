"""Many minutes at twice the capacity of an llm service, with clients that are killed.

The load comes from processes: some live to the end and tell what became of each request, the
others are killed at random moments, as machines and networks do it.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.load.progress import LOG_EVERY_S
from bench.overload import (
    FACTOR,
    PATIENCE_S,
    SERVICE_FLAGS,
    broken_refusals,
    capacity,
    client_command,
    refused,
    unexpected,
)
from bench.report import commit, machine
from bench.service import LlmService, llm_service

CAPACITY_S = 15.0
SURVIVORS = 2
VICTIM_SHARE = 0.25
"""Part of the load that comes from clients which are killed."""
VICTIM_LIFE_S = (2.0, 10.0)
WARM_UP_SHARE = 0.4
"""Part of the time in which memory may still grow: pages of the pool are touched once, record
rings and allocator arenas fill."""
WINDOW_SHARE = 0.1
"""Part of the time over which memory is averaged, after the warm-up and at the end."""


@dataclass
class Findings:
    """What the soak saw. Bytes are of the front and the engine together."""

    commit: str
    """Revision at the start of the run."""
    seconds: float
    offered_per_s: float
    killed: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    """By outcome, of the clients that lived."""
    lost: list[dict[str, Any]] = field(default_factory=list)
    """Facts of the first requests without a terminal."""
    errors: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    refusals_without_retry: int = 0
    unexpected: list[str] = field(default_factory=list)
    latency: list[dict[str, Any]] = field(default_factory=list)
    """TTFT and ITL spreads of each client that lived."""
    entries_before: int = 0
    entries_after: int = 0
    entries_cached_after: int = 0
    in_flight_after: int = 0
    worker_restarts: int = 0
    memory_warm: float = 0.0
    memory_end: float = 0.0
    memory_samples: list[int] = field(default_factory=list)
    """One a second."""

    @property
    def memory_growth(self) -> float:
        """Share by which memory grew after the warm-up."""
        return self.memory_end / self.memory_warm - 1.0

    def write(self, directory: Path) -> Path:
        """Writes the result file; returns its path."""
        host = machine()
        path = directory / f"soak-engine-{host['name']}-{self.commit}.json"
        record = {
            "kind": "soak",
            "machine": host,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "service_flags": SERVICE_FLAGS,
            "memory_growth": self.memory_growth,
            **asdict(self),
        }
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        return path


async def soak(
    seconds: float, run_dir: Path, tell: Callable[[str], None] = lambda line: None
) -> Findings:
    """Runs the load and gathers the findings; asserts nothing.

    Args:
        seconds: of load, after the capacity has been measured.
        run_dir: for the service's log and the clients' results.
        tell: gets a line of progress every few seconds.
    """
    revision = commit()
    async with llm_service(run_dir, *SERVICE_FLAGS) as service:
        before = await service.idle()
        rate = FACTOR * await capacity(service.address, CAPACITY_S)
        found = Findings(revision, seconds, rate, entries_before=before.kv_entries_used)
        watcher = asyncio.create_task(_watch(service, found, tell))
        try:
            async with asyncio.TaskGroup() as clients:
                share = rate * (1 - VICTIM_SHARE) / SURVIVORS
                living = [
                    clients.create_task(_survivor(service.address, share, seconds, n, run_dir))
                    for n in range(SURVIVORS)
                ]
                victims = clients.create_task(
                    _victims(service.address, rate * VICTIM_SHARE, seconds, run_dir)
                )
        finally:
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher
        found.killed = victims.result()
        for client in living:
            _add(found, client.result())
        after = await service.idle(PATIENCE_S)
        found.entries_after = after.kv_entries_used
        found.entries_cached_after = after.kv_entries_cached
        found.in_flight_after = after.running + after.waiting
        found.worker_restarts = after.worker_restarts
    _judge_memory(found)
    return found


async def _survivor(
    address: str, rate: float, seconds: float, number: int, run_dir: Path
) -> dict[str, Any]:
    """A client that lives; returns its result.

    Raises:
        RuntimeError: it ended without one; with the end of what it said.
    """
    file = run_dir / f"client-{number}.json"
    command = client_command(address, rate, seconds, 100 + number, file)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    if not file.exists():
        end = said.decode(errors="replace")[-1000:]
        raise RuntimeError(f"a client ended with status {process.returncode}: {end}")
    return json.loads(file.read_text(encoding="utf-8"))


async def _victims(address: str, rate: float, seconds: float, run_dir: Path) -> int:
    """Clients that are killed one after the other, with requests under way; how many."""
    chance = random.Random(7)
    until = time.monotonic() + seconds
    killed = 0
    while (left := until - time.monotonic()) > VICTIM_LIFE_S[0]:
        file = run_dir / "never-written.json"
        process = await asyncio.create_subprocess_exec(
            *client_command(address, rate, seconds, 1000 + killed, file),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        await asyncio.sleep(min(left, chance.uniform(*VICTIM_LIFE_S)))
        process.kill()
        await process.wait()
        killed += 1
    return killed


async def _watch(service: LlmService, found: Findings, tell: Callable[[str], None]) -> None:
    """Memory each second, a line of progress now and then."""
    while True:
        found.memory_samples.append(service.resident_bytes())
        if len(found.memory_samples) % int(LOG_EVERY_S) == 0:
            status = await service.status()
            tell(
                f"{len(found.memory_samples)} s: {status.running} run, {status.waiting} wait, "
                f"{status.kv_entries_used} entries held, {status.kv_entries_cached} cached, "
                f"{found.memory_samples[-1] / 2**20:.0f} MiB"
            )
        await asyncio.sleep(1.0)


def _add(found: Findings, client: dict[str, Any]) -> None:
    """Adds what one client saw."""
    for outcome, count in client["requests"].items():
        found.requests[outcome] = found.requests.get(outcome, 0) + count
    found.lost += client["lost"]
    errors = client["errors"]
    for reason, row in errors.items():
        found.errors[reason] = found.errors.get(reason, 0) + row["count"]
    found.refused += refused(errors)
    found.refusals_without_retry += broken_refusals(errors)
    found.unexpected += unexpected(errors)
    found.latency.append({name: client[name] for name in ("ttft_ms", "tpot_ms", "itl_ms")})


def _judge_memory(found: Findings) -> None:
    samples = found.memory_samples
    window = max(1, int(len(samples) * WINDOW_SHARE))
    start = int(len(samples) * WARM_UP_SHARE)
    found.memory_warm = statistics.median(samples[start : start + window])
    found.memory_end = statistics.median(samples[-window:])
