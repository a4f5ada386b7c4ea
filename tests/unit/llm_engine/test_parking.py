"""Batch requests that give way go to host memory and come back where they stopped."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from antiphon_llm.engine.request import State
from antiphon_llm.engine.scheduler import Scheduler
from antiphon_llm.kvcache.fields import FieldSpec, entry_bytes
from antiphon_llm.kvcache.host_tier import HostTier
from antiphon_llm.kvcache.pool import KvPool

from .scheduling import end, make_request, make_scheduler, numbers, planned, step

FIELDS = [
    FieldSpec("keys", 4, (2, 3), torch.float32),
    FieldSpec("values", 4, (2, 3), torch.bfloat16),
    FieldSpec("scales", 1, (5,), torch.float32, fill=1.0),
]


class Mover:
    """Remembers what it was told; copies nothing."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.parked: list[list[int]] = []
        self.resumed: list[tuple[int, int]] = []
        self.dropped: list[int] = []

    def park(self, entries: Sequence[int]) -> int:
        self.parked.append(list(entries))
        return len(self.parked) - 1

    def resume(self, handle: int, first: int, entries: Sequence[int]) -> None:
        assert first + len(entries) == len(self.parked[handle])
        self.resumed.append((handle, first))

    def drop(self, handle: int) -> None:
        self.dropped.append(handle)


def interrupted(mover: Mover, *, tree: bool = False) -> tuple[Scheduler, list[int]]:
    """A batch request of 10 tokens, 9 of them written, has just given its row to another."""
    scheduler = make_scheduler(max_rows=1, prefill_chunk=8, mover=mover, tree=tree)
    batch = make_request(1, 8, 20, interactive=False)
    scheduler.enqueue(batch)
    for _ in range(2):
        step(scheduler)
    assert batch.written == 9
    scheduler.enqueue(make_request(2, 3, 1))
    plan = step(scheduler)
    assert numbers(plan.preempted) == [1]
    return scheduler, numbers(plan.parked)


def test_a_parked_request_goes_on_where_it_stopped() -> None:
    mover = Mover(room=8)
    scheduler, parked = interrupted(mover)
    assert parked == [1] and scheduler.parking.count == 1
    assert [len(entries) for entries in mover.parked] == [3]
    plan = step(scheduler)
    assert planned(plan) == {1: 1} and numbers(plan.resumed) == [1]
    assert plan.rows[0].start == 9 and mover.resumed == [(0, 0)]
    assert scheduler.parking.count == 0 and plan.rows[0].request.state is State.DECODING


def test_what_the_prefix_cache_still_has_is_not_copied_back() -> None:
    mover = Mover(room=8)
    scheduler, _ = interrupted(mover, tree=True)
    plan = step(scheduler)
    assert plan.rows[0].start == 9 and mover.resumed == [(0, 2)]


def test_without_room_in_host_memory_it_is_preempted() -> None:
    mover = Mover(room=2)
    scheduler, parked = interrupted(mover)
    assert not parked and not mover.parked
    plan = step(scheduler)
    assert planned(plan) == {1: 8} and plan.rows[0].start == 0


def test_an_end_while_parked_frees_host_memory() -> None:
    mover = Mover(room=8)
    scheduler, _ = interrupted(mover)
    waiting = next(iter(scheduler._waiting[False]))
    assert waiting.state is State.PARKED
    end(scheduler, waiting, publish=False)
    assert mover.dropped == [0] and scheduler.parking.count == 0 and not scheduler.waiting


def test_entries_survive_the_way_to_host_memory_and_back() -> None:
    pool = KvPool(FIELDS, entries=9)
    tier = HostTier(pool, capacity_bytes=4 * entry_bytes(FIELDS) + 1)
    assert tier.room == 4
    generator = torch.Generator().manual_seed(3)
    for view in pool.views.values():
        view.copy_(torch.randn(view.shape, generator=generator))
    before = {name: view.clone() for name, view in pool.views.items()}
    handle = tier.park([7, 2, 5])
    assert tier.room == 1
    for view in pool.views.values():
        view[[7, 2, 5]] = 0
    tier.resume(handle, 1, [3, 9])
    assert tier.room == 4
    for name, view in pool.views.items():
        assert torch.equal(view[[3, 9]], before[name][[2, 5]]), name
        untouched = [0, 1, 4, 6, 8]
        assert torch.equal(view[untouched], before[name][untouched]), name


def test_host_memory_refuses_more_than_it_has() -> None:
    pool = KvPool(FIELDS, entries=9)
    tier = HostTier(pool, capacity_bytes=2 * entry_bytes(FIELDS))
    with pytest.raises(RuntimeError, match="3 entries to park, room for 2"):
        tier.park([1, 2, 3])
    handle = tier.park([1, 2])
    with pytest.raises(RuntimeError, match="1 entries for 2"):
        tier.resume(handle, 0, [4])
    tier.drop(handle)
    assert tier.room == 2
