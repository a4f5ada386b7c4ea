"""The driver over a target in memory."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from bench.load.drive import Arrivals, drive
from bench.load.lengths import Fixed
from bench.load.record import Ended, Record, RequestFailed
from bench.load.workload import Workload

SHAPE = Workload(prompt_tokens=Fixed(2), output_tokens=Fixed(3))


class MemoryTarget:
    """Does ``act`` for each request and counts how many are under way."""

    token_source = "memory"

    def __init__(self, act) -> None:
        self._act = act
        self.under_way = 0
        self.most = 0

    async def open(self):
        return {}

    async def close(self) -> None:
        pass

    async def run(self, record: Record) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self._act(record)
        finally:
            self.under_way -= 1


async def complete(record: Record) -> None:
    for _ in range(record.job.output_tokens):
        await asyncio.sleep(0)
        record.piece(1)
        if record.leaves:
            return
    record.ended = Ended(output_tokens=record.job.output_tokens)


async def test_a_closed_loop_keeps_its_clients_busy_and_stops_at_the_count():
    target = MemoryTarget(complete)
    run = await drive(target, SHAPE, Arrivals(clients=5, requests=40))
    assert run.count("completed") == len(run.records) == 40
    assert sorted(record.job.index for record in run.records) == list(range(40))
    assert target.most == 5
    assert run.in_flight == 0


async def test_an_open_loop_sends_whatever_the_server_does():
    gate = asyncio.Event()

    async def held(record: Record) -> None:
        await gate.wait()
        await complete(record)

    target = MemoryTarget(held)
    task = asyncio.create_task(drive(target, SHAPE, Arrivals(rate=2000.0, requests=50)))
    async with asyncio.timeout(20):
        while target.under_way < 50:
            await asyncio.sleep(0.001)
    gate.set()
    run = await task
    assert run.count("completed") == 50
    gaps = sorted(record.due for record in run.records)
    assert gaps[-1] - gaps[0] == pytest.approx(50 / 2000, rel=0.5)


async def test_poisson_pauses_have_an_exponential_spread():
    async def at_once(record: Record) -> None:
        record.ended = Ended()

    run = await drive(MemoryTarget(at_once), SHAPE, Arrivals(rate=20_000.0, requests=3000))
    due = sorted(record.due for record in run.records)
    pauses = [later - earlier for earlier, later in pairwise(due)]
    mean = sum(pauses) / len(pauses)
    deviation = (sum((pause - mean) ** 2 for pause in pauses) / len(pauses)) ** 0.5
    assert mean == pytest.approx(1 / 20_000, rel=0.1)
    assert deviation / mean == pytest.approx(1.0, rel=0.1)


async def test_time_ends_a_run_without_a_count():
    run = await drive(MemoryTarget(complete), SHAPE, Arrivals(clients=2, seconds=0.05))
    assert run.records
    assert run.count("completed") == len(run.records)


async def test_every_way_to_end_has_its_outcome():
    ways = iter(["complete", "fail", "vanish", "hang"])

    async def act(record: Record) -> None:
        match next(ways):
            case "complete":
                await complete(record)
            case "fail":
                raise RequestFailed("QUEUE_FULL", "full", "RESOURCE_EXHAUSTED")
            case "hang":
                await asyncio.Event().wait()

    run = await drive(MemoryTarget(act), SHAPE, Arrivals(requests=4, patience_s=0.02))
    outcomes = [record.outcome for record in run.records]
    assert outcomes == ["completed", "failed", "lost", "lost"]


async def test_a_client_leaves_at_its_token():
    shape = Workload(prompt_tokens=Fixed(2), output_tokens=Fixed(9), cancel_share=1.0)
    run = await drive(MemoryTarget(complete), shape, Arrivals(requests=20))
    assert run.count("cancelled") == 20
    for record in run.records:
        assert record.streamed_tokens == max(1, record.job.cancel_after)


async def test_a_refused_client_waits_as_told():
    async def refuse(record: Record) -> None:
        raise RequestFailed("QUEUE_FULL", "full", "RESOURCE_EXHAUSTED", retry_after=0.05)

    run = await drive(MemoryTarget(refuse), SHAPE, Arrivals(requests=3))
    first, second, third = (record.sent for record in run.records)
    assert second - first >= 0.05
    assert third - second >= 0.05
    assert all(record.failure.retry_after == 0.05 for record in run.records)


@pytest.mark.parametrize(
    "arrivals", [Arrivals(), Arrivals(rate=0.0, requests=1), Arrivals(clients=0, requests=1)]
)
async def test_a_plan_without_end_or_client_is_refused(arrivals):
    with pytest.raises(ValueError):
        await drive(MemoryTarget(complete), SHAPE, arrivals)
