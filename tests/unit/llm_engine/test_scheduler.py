"""The scheduler as pure host code: budget, states, and random schedules to the end."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from antiphon_llm.engine.budget import water_fill
from antiphon_llm.engine.plan import StepClass, StepPlan, row_shape
from antiphon_llm.engine.request import TRANSITIONS, IllegalTransition, Request, State, Timings
from antiphon_llm.engine.scheduler import Scheduler, SchedulerLimits
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.messages import Sampling
from antiphon_llm.sampler.row import SamplerRow
from hypothesis import given, settings
from hypothesis import strategies as st


def make_request(
    sequence: int, prompt: int, output: int = 4, *, interactive: bool = True
) -> Request:
    sampler = SamplerRow(Sampling(), choice=0, prompt_ids=[1], end_ids=[])
    return Request(
        f"r{sequence}", sequence, [1] * prompt, prompt, output, Timings(0.0),
        interactive=interactive, sampler=sampler,
    )  # fmt: skip


def make_scheduler(
    *, entries: int = 64, context_limit: int = 64, max_rows: int = 4, step_tokens: int = 16,
    prefill_chunk: int = 8, entry_tokens: int = 4, queue_limit: int = 1000,
) -> Scheduler:  # fmt: skip
    limits = SchedulerLimits(max_rows, step_tokens, prefill_chunk, entry_tokens, queue_limit)
    tables = BlockTables(
        EntryAllocator(entries),
        rows=max_rows,
        entry_tokens=entry_tokens,
        context_limit=context_limit,
    )
    return Scheduler(limits, tables)


def commit(scheduler: Scheduler, plan: StepPlan, *, finish: bool = True) -> list[Request]:
    """What the loop does after a step, with a token 1 for every sampling row."""
    ended = []
    scheduler.advance(plan)
    for row in plan.rows:
        request = row.request
        if row.shape.samples:
            request.commit(1)
            if finish and request.outputs >= request.max_tokens:
                scheduler.remove(request, publish=True)
                request.move(State.FINISHED)
                ended.append(request)
    scheduler.settle(plan)
    return ended


class TestWaterFill:
    @settings(max_examples=300, deadline=None)
    @given(st.lists(st.integers(1, 60), max_size=8), st.integers(0, 150), st.integers(1, 16))
    def test_properties(self, demands: list[int], budget: int, unit: int) -> None:
        shares = water_fill(demands, budget, unit)
        assert len(shares) == len(demands)
        assert all(0 <= share <= demand for share, demand in zip(shares, demands, strict=True))
        assert sum(shares) == min(budget, sum(demands))
        partial = [place for place, share in enumerate(shares) if share < demands[place]]
        # Only the oldest unserved demand may hold a share that is no whole number of units.
        assert all(shares[place] % unit == 0 for place in partial[1:])

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 100))
    def test_is_the_brute_force_level_at_unit_one(self, demands: list[int], budget: int) -> None:
        level = max(
            level for level in range(41)
             if sum(min(demand, level) for demand in demands) <= budget
        )  # fmt: skip
        shares = water_fill(demands, budget, 1)
        extras = [share - min(demand, level) for share, demand in zip(shares, demands, strict=True)]
        assert all(extra >= 0 for extra in extras)
        left = budget - sum(min(demand, level) for demand in demands)
        assert sum(extras) == min(left, sum(demands) - sum(min(d, level) for d in demands))

    def test_small_demands_leave_their_rest_to_the_others(self) -> None:
        assert water_fill([100, 3, 100], 63, 10) == [30, 3, 30]
        assert water_fill([100, 3, 100], 60, 10) == [37, 3, 20]


class TestStates:
    @pytest.mark.parametrize("source", list(State))
    @pytest.mark.parametrize("target", list(State))
    def test_only_listed_transitions_happen(self, source: State, target: State) -> None:
        request = make_request(1, 3)
        request.state = source
        if target in TRANSITIONS[source]:
            request.move(target)
            assert request.state is target
        else:
            with pytest.raises(IllegalTransition):
                request.move(target)
            assert request.state is source

    def test_row_shapes(self) -> None:
        request = make_request(1, 5)
        with pytest.raises(ValueError, match="queued row"):
            row_shape(request, 1)
        request.move(State.PREFILLING)
        assert not row_shape(request, 4).samples
        assert row_shape(request, 5).samples
        for wrong in (0, 6):
            with pytest.raises(ValueError, match="pending"):
                row_shape(request, wrong)
        request.move(State.DECODING)
        with pytest.raises(ValueError, match="decode row"):
            row_shape(request, 1)
        request.written = 4
        assert row_shape(request, 1).samples

    def test_limits_that_could_never_advance_are_refused(self) -> None:
        with pytest.raises(ValueError, match="step_tokens 19"):
            make_scheduler(max_rows=4, entry_tokens=16, step_tokens=19)


class TestPlan:
    def test_decodes_come_first_and_prefills_share_the_rest(self) -> None:
        scheduler = make_scheduler()
        scheduler.enqueue(make_request(1, 3))
        commit(scheduler, scheduler.plan())
        scheduler.enqueue(make_request(2, 40))
        scheduler.enqueue(make_request(3, 40))
        plan = scheduler.plan()
        assert [row.request.sequence for row in plan.rows] == [1, 2, 3]
        assert [row.shape.tokens for row in plan.rows] == [1, 8, 7]
        assert plan.step_class is StepClass.PREFILL

    def test_a_decode_only_plan_is_a_decode_step(self) -> None:
        scheduler = make_scheduler()
        scheduler.enqueue(make_request(1, 3))
        commit(scheduler, scheduler.plan())
        assert scheduler.plan().step_class is StepClass.DECODE

    def test_batch_work_waits_for_interactive_work(self) -> None:
        scheduler = make_scheduler(max_rows=2)
        batch = make_request(1, 3, 50, interactive=False)
        scheduler.enqueue(batch)
        commit(scheduler, scheduler.plan())
        scheduler.enqueue(make_request(2, 3, 2))
        for _ in range(2):
            plan = scheduler.plan()
            assert [row.request.sequence for row in plan.rows] == [2]
            commit(scheduler, plan)
        assert batch.preemptions == 0
        assert [row.request.sequence for row in scheduler.plan().rows] == [1]

    def test_an_interactive_request_takes_a_batch_row_when_none_is_free(self) -> None:
        scheduler = make_scheduler(max_rows=2)
        for sequence in (1, 2):
            scheduler.enqueue(make_request(sequence, 3, 50, interactive=False))
        commit(scheduler, scheduler.plan())
        scheduler.enqueue(make_request(3, 3))
        plan = scheduler.plan()
        assert [row.request.sequence for row in plan.rows] == [3]
        assert [request.sequence for request in scheduler.running] == [1, 3]
        assert scheduler.preemptions == 1

    def test_the_newest_is_preempted_and_comes_back_first(self) -> None:
        scheduler = make_scheduler(entries=6, context_limit=24, entry_tokens=4, prefill_chunk=16)
        first, second = make_request(1, 8, 12), make_request(2, 7, 12)
        scheduler.enqueue(first)
        scheduler.enqueue(second)
        commit(scheduler, scheduler.plan())
        scheduler.enqueue(make_request(3, 2))
        while not scheduler.preemptions:
            commit(scheduler, scheduler.plan())
        assert second.state is State.QUEUED and second.outputs > 0 and second.written == 0
        while first.state is not State.FINISHED:
            commit(scheduler, scheduler.plan())
        plan = scheduler.plan()
        assert plan.admitted[0] is second

    def test_an_interactive_row_is_never_preempted_for_a_batch_row(self) -> None:
        scheduler = make_scheduler(entries=4, context_limit=16)
        scheduler.enqueue(make_request(1, 12))
        commit(scheduler, scheduler.plan())
        scheduler.enqueue(make_request(2, 8, interactive=False))
        for _ in range(3):
            assert all(row.request.interactive for row in scheduler.plan().rows)
            commit(scheduler, scheduler.plan(), finish=False)
        assert scheduler.preemptions == 0


class TestDoor:
    def test_queue_limit_and_classes(self) -> None:
        scheduler = make_scheduler(queue_limit=3)
        for sequence in range(3):
            scheduler.enqueue(make_request(sequence, 3, interactive=False))
        assert "limit 3, observed 3" in str(scheduler.refusal(interactive=False))
        assert not scheduler.refusal(interactive=True)

    def test_batch_is_refused_while_interactive_requests_wait(self) -> None:
        scheduler = make_scheduler(max_rows=1)
        scheduler.enqueue(make_request(1, 3))
        assert not scheduler.refusal(interactive=False)
        commit(scheduler, scheduler.plan())
        scheduler.enqueue(make_request(2, 3))
        scheduler.plan()
        assert "interactive requests" in str(scheduler.refusal(interactive=False))


@dataclass
class Arrival:
    at: int
    prompt: int
    output: int
    interactive: bool
    cancel_after: int | None


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        at=st.integers(0, 30),
        prompt=st.integers(1, 30),
        output=st.integers(1, 12),
        interactive=st.booleans(),
        cancel_after=st.none() | st.integers(0, 12),
    ),
    max_size=14,
)


@dataclass
class Simulation:
    """Runs arrivals and cancels through a scheduler and checks every step."""

    scheduler: Scheduler
    arrivals: list[Arrival]
    clock: int = 0
    live: dict[int, Request] = field(default_factory=dict)
    finished: list[int] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)

    def run(self) -> None:
        while self.clock <= 42 or self.live:
            assert self.clock < 3000, "no progress"
            self.arrive_and_cancel()
            self.step()
            self.clock += 1

    def arrive_and_cancel(self) -> None:
        for index, arrival in enumerate(self.arrivals):
            if arrival.at == self.clock:
                request = make_request(
                    index, arrival.prompt, arrival.output, interactive=arrival.interactive
                )
                self.live[index] = request
                self.scheduler.enqueue(request)
            due = (
                arrival.cancel_after is not None and self.clock == arrival.at + arrival.cancel_after
            )
            if due and index in self.live:
                self.drop(index)

    def drop(self, index: int) -> None:
        request = self.live.pop(index)
        self.scheduler.remove(request, publish=False)
        self.scheduler.remove(request, publish=False)
        request.move(State.FINISHED)
        self.cancelled.append(index)

    def step(self) -> None:
        interactive = any(request.interactive for request in self.live.values())
        plan = self.scheduler.plan()
        self.scheduler.check_integrity()
        limits = self.scheduler.limits
        assert plan.tokens <= limits.step_tokens
        assert len(self.scheduler.running) <= limits.max_rows
        assert bool(plan.rows) == bool(self.live), "live requests and an empty step, or none"
        if interactive:
            assert all(row.request.interactive for row in plan.rows)
        kinds = [row.request.state is State.PREFILLING for row in plan.rows]
        assert kinds == sorted(kinds)
        for request in commit(self.scheduler, plan):
            self.finished.append(request.sequence)
            assert request.outputs == request.max_tokens
            del self.live[request.sequence]


@pytest.mark.parametrize("entries", [11, 14, 30])
@settings(max_examples=120, deadline=None)
@given(arrivals=ARRIVALS)
def test_every_schedule_ends_with_all_served_and_nothing_held(
    entries: int, arrivals: list[Arrival]
) -> None:
    scheduler = make_scheduler(entries=entries, context_limit=44)
    simulation = Simulation(scheduler, arrivals)
    simulation.run()
    assert sorted(simulation.finished + simulation.cancelled) == list(range(len(arrivals)))
    assert scheduler.tables.allocator.used == 0
    assert scheduler.tables.free_rows == 4 and scheduler.waiting == 0


def test_a_tight_pool_under_load_preempts_and_still_serves_everybody() -> None:
    chance = random.Random(3)
    arrivals = [
        Arrival(chance.randrange(20), chance.randrange(1, 30), 12, chance.random() < 0.7, None)
        for _ in range(30)
    ]
    simulation = Simulation(make_scheduler(entries=11, context_limit=44), arrivals)
    simulation.run()
    assert simulation.scheduler.preemptions > 0
    assert len(simulation.finished) == 30


def test_planning_does_not_slow_down_with_the_queue(
    record_property: Callable[[str, object], None],
) -> None:
    import time

    def seconds(queued: int) -> float:
        scheduler = make_scheduler(
            entries=4000, max_rows=64, step_tokens=512, queue_limit=5000, context_limit=1000
        )
        for sequence in range(queued):
            scheduler.enqueue(make_request(sequence, 20, 1000))
        for _ in range(10):
            commit(scheduler, scheduler.plan())
        best = 1.0
        for _ in range(20):
            started = time.perf_counter()
            plan = scheduler.plan()
            best = min(best, time.perf_counter() - started)
            commit(scheduler, plan)
        return best

    short, long = seconds(70), seconds(4000)
    record_property("plan_seconds", long)
    assert long < 3 * short + 1e-3
