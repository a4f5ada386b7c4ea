"""The scheduler as pure host code: budget, states, and each rule by itself.

Random schedules to the end are in test_simulator.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType

import pytest
from antiphon_llm.engine.admission import WINDOW
from antiphon_llm.engine.budget import water_fill
from antiphon_llm.engine.limits import SchedulerLimits
from antiphon_llm.engine.plan import StepClass, StepPlan, row_shape
from antiphon_llm.engine.request import (
    TRANSITIONS,
    IllegalTransition,
    PooledVector,
    Request,
    State,
    Timings,
)
from antiphon_llm.engine.scheduler import Scheduler
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.kvcache.prefix_tree import PrefixTree
from antiphon_llm.messages import Sampling
from antiphon_llm.sampler.row import SamplerRow
from hypothesis import given, settings
from hypothesis import strategies as st

SAMPLER = SamplerRow(Sampling(), choice=0, prompt_ids=[1], end_ids=[])


def make_request(
    sequence: int, prompt: int | Sequence[int], output: int = 4, *, interactive: bool = True,
    tenant: str = "", cache: bool = True,
) -> Request:  # fmt: skip
    """A prompt given by its length is unlike every other."""
    tokens = [sequence * 1000 + place for place in range(prompt)] if isinstance(prompt, int) \
        else list(prompt)  # fmt: skip
    return Request(
        f"r{sequence}", sequence, tokens, len(tokens), output, Timings(0.0),
        interactive=interactive, tenant=tenant, cache=cache, sampler=SAMPLER,
    )  # fmt: skip


def make_scheduler(
    *, entries: int = 64, context_limit: int = 64, max_rows: int = 4, step_tokens: int = 16,
    prefill_chunk: int = 8, entry_tokens: int = 4, queue_limit: int = 1000, tree: bool = True,
    **limits: object,
) -> Scheduler:  # fmt: skip
    bounds = SchedulerLimits(
        max_rows, step_tokens, prefill_chunk, entry_tokens, queue_limit, **limits
    )
    allocator = EntryAllocator(entries)
    tables = BlockTables(
        allocator, rows=max_rows, entry_tokens=entry_tokens, context_limit=context_limit
    )
    cache = PrefixTree(allocator, fingerprint=b"model") if tree else None
    return Scheduler(bounds, tables, cache)


def commit(scheduler: Scheduler, plan: StepPlan, *, token: int = 1) -> None:
    """What the loop does with a launched step, in which every sampling row draws ``token``."""
    for row in plan.rows:
        request = row.request
        if row.shape.samples and row.current:
            request.commit(token)
            if request.outputs >= request.max_tokens:
                end(scheduler, request)
    scheduler.settle(plan)
    scheduler.check_integrity()


def end(scheduler: Scheduler, request: Request, *, publish: bool = True) -> None:
    scheduler.remove(request, publish=publish)
    request.move(State.FINISHED)


def step(scheduler: Scheduler) -> StepPlan:
    """One step without overlap."""
    plan = scheduler.plan()
    scheduler.advance(plan)
    commit(scheduler, plan)
    return plan


def launch(scheduler: Scheduler) -> StepPlan:
    """A step in flight."""
    plan = scheduler.plan()
    scheduler.advance(plan)
    return plan


def numbers(requests: Sequence[Request]) -> list[int]:
    return [request.sequence for request in requests]


def planned(plan: StepPlan) -> dict[int, int]:
    """Tokens of each request's row."""
    return {row.request.sequence: row.shape.tokens for row in plan.rows}


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

    @settings(max_examples=300, deadline=None)
    @given(
        st.lists(st.integers(1, 40), min_size=1, max_size=6),
        st.integers(0, 100),
        st.integers(1, 16),
    )
    def test_is_the_brute_force_level(self, demands: list[int], budget: int, unit: int) -> None:
        level = max(
            level for level in range(41)
            if sum(min(demand, level) for demand in demands) <= budget
        )  # fmt: skip
        expected = [demand if demand <= level else level // unit * unit for demand in demands]
        for place, demand in enumerate(demands):
            left = budget - sum(expected)
            expected[place] += min(left, demand - expected[place])
        assert water_fill(demands, budget, unit) == expected

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
        step(scheduler)
        scheduler.enqueue(make_request(2, 40))
        scheduler.enqueue(make_request(3, 40))
        plan = scheduler.plan()
        assert planned(plan) == {1: 1, 2: 8, 3: 7}
        assert plan.step_class is StepClass.PREFILL

    def test_a_decode_only_plan_is_a_decode_step(self) -> None:
        scheduler = make_scheduler()
        scheduler.enqueue(make_request(1, 3))
        assert [row.request.sequence for row in step(scheduler).completed] == [1]
        plan = scheduler.plan()
        assert plan.step_class is StepClass.DECODE and not plan.completed

    def test_a_plan_costs_the_same_with_a_long_queue(self) -> None:
        def calls(queued: int) -> int:
            scheduler = make_scheduler(entries=400, context_limit=400, prefill_chunk=12)
            for sequence in range(queued):
                scheduler.enqueue(make_request(sequence, 3, 300))
            for _ in range(3):
                step(scheduler)
            count = 0

            def on_call(frame: FrameType, event: str, argument: object) -> None:
                nonlocal count
                count += event in ("call", "c_call")

            before = sys.getprofile()
            sys.setprofile(on_call)
            try:
                scheduler.plan()
            finally:
                sys.setprofile(before)
            return count

        assert calls(10) == calls(900)

    def test_narrowing_bounds_what_is_started_and_stops_nothing(self) -> None:
        scheduler = make_scheduler(step_tokens=64)
        for sequence in range(3):
            scheduler.enqueue(make_request(sequence, 20))
        assert len(step(scheduler).rows) == 3
        scheduler.enqueue(make_request(4, 20))
        scheduler.narrow(prefill_chunk=4, rows=2)
        plan = step(scheduler)
        assert planned(plan) == {0: 4, 1: 4, 2: 4} and not plan.admitted


class TestClasses:
    def test_batch_work_waits_for_interactive_work(self) -> None:
        scheduler = make_scheduler(max_rows=2)
        batch = make_request(1, 3, 50, interactive=False)
        scheduler.enqueue(batch)
        step(scheduler)
        scheduler.enqueue(make_request(2, 3, 2))
        assert [planned(step(scheduler)) for _ in range(2)] == [{2: 3}, {2: 1}]
        assert batch.preemptions == 0
        assert planned(step(scheduler)) == {1: 1}

    def test_an_interactive_request_takes_a_batch_row_when_none_is_free(self) -> None:
        scheduler = make_scheduler(max_rows=2)
        for sequence in (1, 2):
            scheduler.enqueue(make_request(sequence, 3, 50, interactive=False))
        step(scheduler)
        scheduler.enqueue(make_request(3, 3))
        plan = step(scheduler)
        assert planned(plan) == {3: 3} and numbers(plan.preempted) == [2]
        assert numbers(scheduler.running) == [1, 3]

    def test_batch_rows_have_a_bound_of_their_own(self) -> None:
        scheduler = make_scheduler(batch_rows_max=1)
        for sequence in (1, 2):
            scheduler.enqueue(make_request(sequence, 3, 3, interactive=False))
        assert planned(step(scheduler)) == {1: 3}
        scheduler.enqueue(make_request(3, 3, 1))
        scheduler.enqueue(make_request(4, 3, 1))
        assert planned(step(scheduler)) == {3: 3, 4: 3}
        assert planned(step(scheduler)) == {1: 1}

    def test_an_interactive_row_is_never_preempted_for_a_batch_row(self) -> None:
        scheduler = make_scheduler(entries=4, context_limit=16)
        scheduler.enqueue(make_request(1, 12))
        step(scheduler)
        scheduler.enqueue(make_request(2, 8, interactive=False))
        for _ in range(3):
            assert planned(step(scheduler)).keys() == {1}
        assert scheduler.preemptions == 0


class TestPreemption:
    def test_the_newest_gives_way_and_comes_back_first_with_what_it_wrote(self) -> None:
        scheduler = make_scheduler(entries=8, context_limit=24, prefill_chunk=16)
        first, second = make_request(1, 8, 12, cache=False), make_request(2, 7, 12)
        third = make_request(3, 7, 12, cache=False)
        for request in (first, second, third):
            scheduler.enqueue(request)
        while not second.preemptions:
            step(scheduler)
        assert second.state is State.QUEUED and second.outputs > 0 and second.written == 0
        while not second.row >= 0:
            plan = step(scheduler)
        assert plan.admitted[0] is second
        row = next(row for row in plan.rows if row.request is second)
        assert row.start >= 4, "what it wrote outlived it in the cache"
        assert second.cached_tokens == 0, "only the first admission counts"

    @pytest.mark.parametrize(("weights", "victim"), [({}, 3), ({"light": 0.5}, 2)])
    def test_the_lowest_weight_gives_way_first(
        self, weights: dict[str, float], victim: int
    ) -> None:
        scheduler = make_scheduler(
            entries=9, context_limit=24, prefill_chunk=16, tenant_weights=weights
        )
        for sequence, tenant in ((1, "a"), (2, "light"), (3, "b")):
            scheduler.enqueue(make_request(sequence, 4, 20, tenant=tenant))
            step(scheduler)
        assert scheduler.running_count == 3
        plan = StepPlan()
        while not plan.preempted:
            plan = step(scheduler)
        assert numbers(plan.preempted) == [victim]

    def test_an_elder_never_gives_way_to_a_younger_request_of_its_class(self) -> None:
        scheduler = make_scheduler(
            entries=6, context_limit=24, prefill_chunk=4, step_tokens=8,
            tenant_weights={"light": 0.1},
        )  # fmt: skip
        # The elder still computes its prompt when the younger one runs out of entries.
        scheduler.enqueue(make_request(1, 16, 4, tenant="light"))
        scheduler.enqueue(make_request(2, 3, 16, tenant="heavy"))
        preempted: list[int] = []
        while scheduler.running_count or scheduler.waiting:
            preempted += numbers(step(scheduler).preempted)
        assert preempted.count(1) == 0 and preempted

    def test_a_failed_steps_row_waits_again_and_nothing_of_it_is_trusted(self) -> None:
        scheduler = make_scheduler()
        request = make_request(1, 8)
        scheduler.enqueue(request)
        plan = launch(scheduler)
        scheduler.requeue(request)
        scheduler.settle(plan, computed=False)
        scheduler.check_integrity()
        assert not plan.rows[0].current and scheduler.tables.allocator.used == 0
        assert planned(step(scheduler)) == {1: 8} and request.written == 8


class TestOverlap:
    def test_a_decode_row_is_planned_while_its_token_is_being_drawn(self) -> None:
        scheduler = make_scheduler()
        request = make_request(1, 3, 3)
        scheduler.enqueue(request)
        first = launch(scheduler)
        assert (request.length, request.ahead, request.pending) == (4, 1, 1)
        second = launch(scheduler)
        assert second.rows[0].start == 3 == len(request.tokens)
        commit(scheduler, first)
        third = launch(scheduler)
        assert third.rows[0].start == 4
        commit(scheduler, second)
        assert not scheduler.plan().rows, "the third and last token is being drawn"
        commit(scheduler, third)
        assert request.state is State.FINISHED and request.outputs == 3

    def test_entries_that_a_launched_step_may_write_are_freed_when_it_settles(self) -> None:
        scheduler = make_scheduler(tree=False)
        request = make_request(1, 8, 8)
        scheduler.enqueue(request)
        step(scheduler)
        flight = launch(scheduler)
        end(scheduler, request, publish=False)
        assert request.ahead == 0
        assert scheduler.tables.allocator.used == 1, "the entry of position 8"
        scheduler.check_integrity()
        commit(scheduler, flight)
        assert scheduler.tables.allocator.used == 0

    def test_a_prompt_is_shared_only_once_its_step_is_collected(self) -> None:
        scheduler = make_scheduler()
        scheduler.enqueue(make_request(1, range(8), 9))
        flight = launch(scheduler)
        second = make_request(2, range(9), 9)
        scheduler.enqueue(second)
        assert not scheduler.plan().admitted and scheduler.admission.prefix_waits == 1
        commit(scheduler, flight)
        assert numbers(scheduler.plan().admitted) == [2]
        assert second.cached_tokens == 8


class TestPrefixCache:
    def test_a_prompt_is_found_up_to_its_last_token_but_one(self) -> None:
        scheduler = make_scheduler()
        scheduler.enqueue(make_request(1, range(8), 1))
        step(scheduler)
        again = make_request(2, range(8), 1)
        scheduler.enqueue(again)
        assert planned(step(scheduler)) == {2: 4}
        assert again.cached_tokens == 4 == scheduler.cached_tokens

    def test_output_is_shared_after_a_natural_end_and_not_after_a_cancel(self) -> None:
        for publish, cached in ((True, 8), (False, 4)):
            scheduler = make_scheduler()
            first = make_request(1, range(4), 9)
            scheduler.enqueue(first)
            for _ in range(5):
                step(scheduler)
            assert first.tokens == [0, 1, 2, 3, 1, 1, 1, 1, 1]
            end(scheduler, first, publish=publish)
            second = make_request(2, [*first.tokens, 50], 1)
            scheduler.enqueue(second)
            step(scheduler)
            assert second.cached_tokens == cached

    def test_without_leave_nothing_is_read_or_written(self) -> None:
        scheduler = make_scheduler()
        scheduler.enqueue(make_request(1, range(8), 1, cache=False))
        step(scheduler)
        assert scheduler.tables.allocator.used == 0
        scheduler.enqueue(make_request(2, range(8), 1))
        step(scheduler)
        third = make_request(3, range(9), 1, cache=False)
        scheduler.enqueue(third)
        step(scheduler)
        assert third.cached_tokens == 0

    def test_requests_that_need_every_hidden_state_compute_every_token(self) -> None:
        scheduler = make_scheduler()
        scheduler.enqueue(make_request(1, range(8), 1))
        step(scheduler)
        scored, pooled = make_request(2, range(8), 1), make_request(3, range(8), 0)
        scored.prompt_logprobs = 0
        pooled.sampler, pooled.pooled = None, PooledVector(mean=True, normalise=True)
        for request in (scored, pooled):
            scheduler.enqueue(request)
        assert planned(scheduler.plan()) == {2: 8, 3: 8}

    def test_tenants_share_nothing_and_are_flushed_alone(self) -> None:
        scheduler = make_scheduler()
        for sequence, tenant in enumerate(("a", "b", "a", "b")):
            if sequence == 2:
                scheduler.flush("b")
            request = make_request(sequence, range(8), 1, tenant=tenant)
            scheduler.enqueue(request)
            step(scheduler)
            assert request.cached_tokens == (4 if sequence == 2 else 0)

    def test_cached_entries_give_way_to_whoever_needs_them(self) -> None:
        scheduler = make_scheduler(entries=5, context_limit=20, prefill_chunk=16)
        for sequence in range(4):
            scheduler.enqueue(make_request(sequence, 15, 2))
            step(scheduler)
            step(scheduler)
        assert scheduler.holdings.cached > 0 and not scheduler.running_count


class TestPrefixSerial:
    def test_a_follower_waits_for_its_leader_and_others_pass_it(self) -> None:
        scheduler = make_scheduler()
        for request in (
            make_request(1, [*range(16), 70]), make_request(2, [*range(16), 80]),
            make_request(3, 4), make_request(4, [*range(16), 90], tenant="b"),
        ):  # fmt: skip
            scheduler.enqueue(request)
        assert numbers(step(scheduler).admitted) == [1, 4, 3]
        while not any(row.request.sequence == 1 for row in step(scheduler).completed):
            assert scheduler.waiting == 1
        plan = step(scheduler)
        assert numbers(plan.admitted) == [2] and planned(plan)[2] == 1

    @pytest.mark.parametrize("cause", ["cancel", "preempt", "flush", "failure"])
    def test_a_wait_ends_with_its_leader(self, cause: str) -> None:
        scheduler = make_scheduler(prefill_chunk=4)
        leader = make_request(1, [*range(16), 70])
        follower = make_request(2, [*range(16), 80])
        for request in (leader, follower):
            scheduler.enqueue(request)
        step(scheduler)
        assert follower.row < 0
        if cause == "cancel":
            end(scheduler, leader, publish=False)
        elif cause == "preempt":
            scheduler.requeue(leader)
        elif cause == "failure":
            plan = launch(scheduler)
            scheduler.requeue(leader)
            scheduler.settle(plan, computed=False)
        else:
            scheduler.flush()
        for _ in range(30):
            step(scheduler)
        assert follower.state is State.FINISHED

    def test_a_long_leader_is_not_waited_for_by_a_short_request(self) -> None:
        scheduler = make_scheduler()
        scheduler.enqueue(make_request(1, range(50)))
        scheduler.enqueue(make_request(2, [0, 1, 2, 3, 90, 91]))
        assert numbers(step(scheduler).admitted) == [1, 2]

    def test_what_is_cached_already_is_no_reason_to_wait(self) -> None:
        scheduler = make_scheduler()
        scheduler.enqueue(make_request(1, range(9), 1))
        while scheduler.waiting or scheduler.running_count:
            step(scheduler)
        scheduler.enqueue(make_request(2, [*range(8), *range(60, 80)]))
        scheduler.enqueue(make_request(3, [*range(8), *range(80, 99)]))
        assert numbers(step(scheduler).admitted) == [2, 3]

    def test_a_plan_looks_at_a_bounded_part_of_the_queue(self) -> None:
        scheduler = make_scheduler(entries=900, prefill_chunk=4)
        for sequence in range(200):
            scheduler.enqueue(make_request(sequence, [*range(16), 100 + sequence]))
        scheduler.enqueue(make_request(200, 3))
        assert numbers(step(scheduler).admitted) == [0]
        assert scheduler.admission.prefix_waits == WINDOW - 1


class TestTenants:
    def test_admissions_follow_the_weights(self) -> None:
        scheduler = make_scheduler(max_rows=1, tenant_weights={"a": 3.0, "b": 1.5})
        for sequence in range(60):
            scheduler.enqueue(make_request(sequence, 3, 1, tenant="abc"[sequence % 3]))
        admitted = [step(scheduler).admitted[0].tenant for _ in range(22)]
        assert [admitted.count(tenant) for tenant in "abc"] == [12, 6, 4]

    def test_one_tenants_backlog_holds_nobody_up(self) -> None:
        scheduler = make_scheduler(max_rows=2)
        for sequence in range(20):
            scheduler.enqueue(make_request(sequence, 3, 1, tenant="many"))
        scheduler.enqueue(make_request(20, 3, 1, tenant="few"))
        assert numbers(step(scheduler).admitted) == [0, 20]

    def test_a_tenant_at_its_bound_is_passed_over_queued_and_counted(self) -> None:
        scheduler = make_scheduler(tenant_rows_max=1)
        for sequence, tenant in enumerate("aab"):
            scheduler.enqueue(make_request(sequence, 3, 2, tenant=tenant))
        assert numbers(step(scheduler).admitted) == [0, 2]
        assert scheduler.waiting == 1 and scheduler.admission.tenant_waits > 0
        step(scheduler)
        assert numbers(step(scheduler).admitted) == [1]

    def test_batch_rows_of_a_tenant_do_not_hold_up_its_interactive_requests(self) -> None:
        scheduler = make_scheduler(tenant_rows_max=1)
        scheduler.enqueue(make_request(1, 3, 9, interactive=False, tenant="a"))
        step(scheduler)
        scheduler.enqueue(make_request(2, 3, tenant="a"))
        assert planned(step(scheduler)) == {2: 3}


class TestDoor:
    def test_queue_limit_and_classes(self) -> None:
        scheduler = make_scheduler(queue_limit=3)
        for sequence in range(3):
            scheduler.enqueue(make_request(sequence, 3, interactive=False))
        refusal = scheduler.refusal(interactive=False)
        assert refusal is not None
        assert (refusal.reason, refusal.limit, refusal.observed) == ("QUEUE_FULL", 3, 3)
        assert "limit 3, observed 3" in str(refusal)
        assert scheduler.refusal(interactive=True) is None

    def test_batch_is_refused_while_interactive_requests_wait(self) -> None:
        scheduler = make_scheduler(max_rows=1)
        scheduler.enqueue(make_request(1, 3))
        assert scheduler.refusal(interactive=False) is None, "it would not wait"
        step(scheduler)
        scheduler.enqueue(make_request(2, 3))
        step(scheduler)
        refusal = scheduler.refusal(interactive=False)
        assert refusal is not None and "interactive requests" in str(refusal)

    def test_a_full_pool_refuses_what_would_wait(self) -> None:
        scheduler = make_scheduler(entries=10, context_limit=36, prefill_chunk=64, step_tokens=64)
        scheduler.enqueue(make_request(1, 35, 1000))
        step(scheduler)
        assert scheduler.refusal(interactive=True) is None, "nobody waits"
        scheduler.enqueue(make_request(2, 8))
        step(scheduler)
        refusal = scheduler.refusal(interactive=True)
        assert refusal is not None
        assert (refusal.reason, refusal.limit, refusal.observed) == ("KV_FULL", 0.9, 0.9)

    def test_neither_the_cache_nor_batch_work_fills_the_pool_for_interactive_work(self) -> None:
        scheduler = make_scheduler(entries=10, context_limit=36, prefill_chunk=64, step_tokens=64)
        scheduler.enqueue(make_request(1, 35, 1))
        step(scheduler)
        assert scheduler.holdings.cached == 8
        scheduler.enqueue(make_request(2, 20, 9, interactive=False))
        scheduler.enqueue(make_request(3, 20, 9, interactive=False))
        step(scheduler)
        assert scheduler.waiting == 1
        assert scheduler.refusal(interactive=True) is None
        assert scheduler.refusal(interactive=False) is None, "5 of 10 are held"

    @pytest.mark.parametrize(
        ("name", "value"),
        [("batch_rows_max", 5), ("tenant_rows_max", -1), ("tenant_weights", {"a": 0.0})],
    )
    def test_limits_that_make_no_sense_are_refused(self, name: str, value: object) -> None:
        with pytest.raises(ValueError, match=name):
            make_scheduler(**{name: value})
