"""Offers a workload to a target: at Poisson times, or by a fixed number of clients."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

from bench.load.record import Record, RequestFailed
from bench.load.targets import Target
from bench.load.workload import Job, Workload

_SHOW_EVERY_S = 0.5


@dataclass(frozen=True)
class Arrivals:
    """When requests are sent, and when that ends.

    With a ``rate`` the loop is open: requests come at Poisson times whatever the server does,
    which shows queueing. Without one it is closed: each of ``clients`` sends its next request
    when its last has ended.
    """

    rate: float | None = None
    """Requests a second."""
    clients: int = 1
    requests: int = 0
    """Requests in all; 0 sends until the time is over."""
    seconds: float = 0.0
    """Time in which requests are started; 0 sends until the number is reached."""
    patience_s: float = 300.0
    """A request without its terminal after this time (its deadline added) is lost."""
    wait_as_told: bool = True
    """A refused client of the closed loop waits for the server's retry time, at most 5 s."""

    def check(self) -> None:
        """Refuses a plan without an end or without a client.

        Raises:
            ValueError: naming the value.
        """
        if not self.requests and not self.seconds:
            raise ValueError("requests or seconds must bound the run")
        if self.rate is not None and self.rate <= 0:
            raise ValueError(f"rate is {self.rate}; requests a second are above 0")
        if self.rate is None and self.clients < 1:
            raise ValueError(f"clients is {self.clients}; a closed loop has at least one")


@dataclass
class Run:
    """What a run gathered; grows while it goes on."""

    records: list[Record] = field(default_factory=list)
    in_flight: int = 0

    def count(self, outcome: str) -> int:
        """Ended requests of one outcome."""
        return sum(record.outcome == outcome for record in self.records)


LONGEST_RETRY_WAIT_S = 5.0


async def drive(
    target: Target,
    workload: Workload,
    arrivals: Arrivals,
    *,
    show: Callable[[Run], None] = lambda run: None,
) -> Run:
    """Runs the workload to the end of its last request.

    Args:
        target: opened.
        show: called twice a second and at the end.
    """
    workload.check()
    arrivals.check()
    jobs: Iterator[Job] = workload.jobs()
    if arrivals.requests:
        jobs = itertools.islice(jobs, arrivals.requests)
    driver = _Driver(target, arrivals, random.Random(workload.seed + 1))
    async with _shown(driver.run, show):
        if arrivals.rate is None:
            await driver.closed_loop(jobs)
        else:
            await driver.open_loop(jobs, arrivals.rate)
    return driver.run


async def warm_up(target: Target, workload: Workload, requests: int, clients: int) -> None:
    """Sends requests that nobody counts, with prompts and prefixes of their own."""
    own = replace(workload, seed=workload.seed ^ 0x5EED, cancel_share=0.0, deadline_share=0.0)
    await drive(target, own, Arrivals(clients=clients, requests=requests))


class _Driver:
    """One run's state."""

    def __init__(self, target: Target, arrivals: Arrivals, chance: random.Random) -> None:
        self.run = Run()
        self._target = target
        self._arrivals = arrivals
        self._chance = chance
        self._until = time.perf_counter() + arrivals.seconds if arrivals.seconds else float("inf")

    async def closed_loop(self, jobs: Iterator[Job]) -> None:
        """Each client takes the next job when its last has ended."""
        async with asyncio.TaskGroup() as clients:
            for _ in range(self._arrivals.clients):
                clients.create_task(self._client(jobs))

    async def open_loop(self, jobs: Iterator[Job], rate: float) -> None:
        """Exponential pauses between due times; lateness does not shift the times that follow."""
        due = time.perf_counter()
        async with asyncio.TaskGroup() as requests:
            for job in jobs:
                due += self._chance.expovariate(rate)
                if due > self._until:
                    return
                if (pause := due - time.perf_counter()) > 0:
                    await asyncio.sleep(pause)
                requests.create_task(self._request(job, due))

    async def _client(self, jobs: Iterator[Job]) -> None:
        for job in jobs:
            if time.perf_counter() >= self._until:
                return
            record = await self._request(job, time.perf_counter())
            wait = record.failure.retry_after if record.failure is not None else None
            if wait and self._arrivals.wait_as_told:
                await asyncio.sleep(min(wait, LONGEST_RETRY_WAIT_S))

    async def _request(self, job: Job, due: float) -> Record:
        record = Record(job, sent=time.perf_counter(), due=due)
        self.run.in_flight += 1
        try:
            async with asyncio.timeout(self._arrivals.patience_s + (job.deadline_s or 0.0)):
                await self._target.run(record)
        except RequestFailed as failure:
            record.failure = failure
        except TimeoutError:
            pass  # The outcome stays lost.
        finally:
            record.done = time.perf_counter()
            self.run.in_flight -= 1
            self.run.records.append(record)
        if record.failure is not None:
            record.outcome = "failed"
        elif record.ended is not None:
            record.outcome = "completed"
        elif record.leaves:
            record.outcome = "cancelled"
        return record


@asynccontextmanager
async def _shown(run: Run, show: Callable[[Run], None]) -> AsyncIterator[None]:
    """Shows the run at intervals while the block goes on."""

    async def ticks() -> None:
        while True:
            await asyncio.sleep(_SHOW_EVERY_S)
            show(run)

    ticker = asyncio.create_task(ticks())
    try:
        yield
    finally:
        ticker.cancel()
        with suppress(asyncio.CancelledError):
            await ticker
        show(run)
