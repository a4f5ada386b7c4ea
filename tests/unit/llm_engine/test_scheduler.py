"""The scheduler as pure host code: budget, states, and each rule by itself.

Random schedules to the end are in test_simulator.py.
"""

from __future__ import annotations

import sys
from types import FrameType

import pytest
from antiphon_llm.engine.budget import water_fill
from antiphon_llm.engine.plan import StepClass, StepPlan, row_shape
from antiphon_llm.engine.request import (
    TRANSITIONS,
    IllegalTransition,
    State,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from .scheduling import (
    commit,
    end,
    launch,
    make_request,
    make_scheduler,
    numbers,
    planned,
    step,
)


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

    @pytest.mark.parametrize(("bound", "tokens"), [(0, 8), (6, 6), (16, 16)])
    def test_a_batch_step_is_short_for_whoever_arrives_meanwhile(
        self, bound: int, tokens: int
    ) -> None:
        scheduler = make_scheduler(batch_tokens_max=bound)
        for sequence in range(3):
            scheduler.enqueue(make_request(sequence, 16, 3, interactive=False))
        assert scheduler.plan().tokens == tokens

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
        plan = step(scheduler)
        while second.row < 0:
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
