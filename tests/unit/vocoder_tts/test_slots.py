"""The slot pool: order, limits, cancelled waits, release once."""

from __future__ import annotations

import asyncio
import random

import pytest
from antiphon_core.errors import ResourceExhausted
from antiphon_vocoder.slots import Lease, SlotPool


async def test_first_come_first_served() -> None:
    pool = SlotPool(1, 4)
    held = await pool.acquire()
    order: list[int] = []

    async def wait(index: int) -> Lease:
        lease = await pool.acquire()
        order.append(index)
        return lease

    tasks = [asyncio.create_task(wait(index)) for index in range(3)]
    await asyncio.sleep(0)
    assert (pool.busy, pool.queued) == (1, 3)
    held.release()
    for task in tasks:
        (await task).release()
    assert order == [0, 1, 2]
    assert (pool.busy, pool.queued) == (0, 0)


async def test_full_queue_refuses_with_a_time() -> None:
    pool = SlotPool(1, 0)
    lease = await pool.acquire()
    with pytest.raises(ResourceExhausted) as error:
        await pool.acquire()
    assert error.value.reason == "QUEUE_FULL"
    assert error.value.retry_after is not None
    assert error.value.retry_after >= 0.5
    lease.release()
    (await pool.acquire()).release()


async def test_release_counts_once_and_generations_grow() -> None:
    pool = SlotPool(1, 1)
    first = await pool.acquire()
    first.release()
    second = await pool.acquire()
    first.release()
    assert pool.busy == 1
    assert (second.slot, second.generation) == (first.slot, first.generation + 1)
    second.release()
    assert pool.busy == 0


async def test_random_cancelled_waits_leave_the_pool_as_it_was() -> None:
    pool = SlotPool(3, 100)
    generator = random.Random(1)

    async def use() -> None:
        lease = await pool.acquire()
        try:
            await asyncio.sleep(generator.random() * 0.002)
        finally:
            lease.release()

    for _ in range(20):
        tasks = [asyncio.create_task(use()) for _ in range(15)]
        await asyncio.sleep(0.001)
        for task in generator.sample(tasks, 8):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert (pool.busy, pool.queued) == (0, 0)


async def test_a_wait_cancelled_in_its_turn_passes_the_slot_on() -> None:
    pool = SlotPool(1, 2)
    held = await pool.acquire()
    cancelled = asyncio.create_task(pool.acquire())
    waiting = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0)
    held.release()
    cancelled.cancel()
    lease = await waiting
    assert pool.busy == 1
    lease.release()
    assert pool.busy == 0


async def test_slots_that_are_gone_are_not_given_again() -> None:
    pool = SlotPool(4, 4)
    held = [await pool.acquire() for _ in range(3)]
    pool.shrink(2)
    for lease in held:
        lease.release()
    assert (pool.total, pool.busy) == (2, 0)
    again = [await pool.acquire(), await pool.acquire()]
    assert {lease.slot for lease in again} == {0, 1}
    assert pool.utilization == 1.0
    waiting = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0)
    assert (pool.queued, pool.utilization) == (1, 1.0)
    again[0].release()
    (await waiting).release()
