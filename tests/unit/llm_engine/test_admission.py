"""Who is admitted and who is refused: prefixes in cache and in the making, tenants, the door."""

from __future__ import annotations

import pytest
from antiphon_llm.engine.admission import WINDOW
from antiphon_llm.engine.readout import PooledVector, Pooling, Readout
from antiphon_llm.engine.request import State

from .scheduling import (
    end,
    launch,
    make_request,
    make_scheduler,
    numbers,
    planned,
    step,
)


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
        pooled.sampler, pooled.pooled = None, PooledVector(Readout(Pooling.MEAN))
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

    def test_what_a_victim_shared_is_counted_anew(self) -> None:
        scheduler = make_scheduler(entries=8, context_limit=32)
        victim = make_request(1, range(9), 9, interactive=False)
        scheduler.enqueue(victim)
        for _ in range(2):
            step(scheduler)
        scheduler.enqueue(make_request(2, 5, 9))
        step(scheduler)
        # The prefix of two entries is held by the victim only: opening 3 takes 7 entries in
        # the end, and a spare one for request 2, of the 6 that the victim leaves.
        scheduler.enqueue(make_request(3, [*range(8), *range(50, 70)]))
        plan = step(scheduler)
        assert numbers(plan.preempted) == [1] and not plan.admitted


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
