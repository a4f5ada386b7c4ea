"""Which decode rows draft: all as wide as the deepest proposal, or none."""

from __future__ import annotations

import numpy as np
import pytest
from antiphon_llm.engine.batch import BatchBuilder
from antiphon_llm.engine.plan import DECODE_ROW, StepClass, StepPlan, row_shape
from antiphon_llm.engine.request import State
from antiphon_llm.engine.scheduler import Scheduler
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables

from .scheduling import commit, make_request, make_scheduler, step


def decoding(count: int, *, prompt: int = 3, output: int = 20, **settings: object) -> Scheduler:
    scheduler = make_scheduler(**settings)
    for sequence in range(1, count + 1):
        scheduler.enqueue(make_request(sequence, prompt, output))
    while len(scheduler.next_decodes()) < count:
        step(scheduler)
    return scheduler


def propose(scheduler: Scheduler, *drafts: list[int]) -> StepPlan:
    for request, tokens in zip(scheduler.next_decodes(), drafts, strict=True):
        request.drafts = tokens
    plan = scheduler.plan()
    assert not any(request.drafts for request in scheduler.running)
    return plan


def test_all_rows_are_as_wide_as_the_deepest_proposal() -> None:
    scheduler = decoding(3)
    plan = propose(scheduler, [7], [], [5, 6, 8])
    assert [row.drafts for row in plan.rows] == [(7, -1, -1), (-1, -1, -1), (5, 6, 8)]
    assert {(row.shape.tokens, row.shape.draws) for row in plan.rows} == {(4, 4)}
    assert (plan.decode_rows, plan.decode_tokens, plan.draft_depth) == (3, 12, 3)
    assert plan.step_class is StepClass.VERIFY
    assert [row.proposed for row in plan.rows] == [1, 0, 3]
    assert {row.first_draw - row.start for row in plan.rows} == {1}


def test_refused_drafts_are_taken_back() -> None:
    scheduler = decoding(1, prompt=6, tree=False)
    (request,) = scheduler.running
    used = scheduler.tables.allocator.used
    plan = propose(scheduler, [1, 2, 3, 4])
    scheduler.advance(plan)
    assert (request.written, request.length) == (11, 12)
    assert scheduler.tables.allocator.used == used + 1
    (row,) = plan.rows
    scheduler.trim(row, 2)
    assert (request.written, request.length) == (8, 9)
    assert scheduler.tables.allocator.used == used
    request.commit(1)
    request.commit(9)
    scheduler.settle(plan)
    scheduler.check_integrity()
    assert (request.settled, request.pending, request.ahead) == (8, 1, 0)


def test_nobody_drafts_the_last_token_that_it_may_have() -> None:
    scheduler = decoding(1, output=4)
    plan = propose(scheduler, [1, 2, 3, 4, 5])
    assert plan.rows[0].drafts == (1, 2), "one token is drawn behind them, one is there"


@pytest.mark.parametrize(
    ("settings", "drafts", "reason"),
    [
        ({"step_tokens": 16}, [[1] * 6, [2] * 6], "step budget"),
        ({"entries": 4, "step_tokens": 40}, [[1] * 6, [2] * 6], "entries"),
        ({"output": 2}, [[1], [2]], "near the end"),
    ],
)
def test_a_step_without_room_runs_without_drafts(
    settings: dict[str, int], drafts: list[list[int]], reason: str
) -> None:
    scheduler = decoding(2, **settings)
    plan = propose(scheduler, *drafts)
    assert scheduler.counters()[f"draft: none, {reason}"] == 1
    assert plan.draft_depth == 0 and {row.shape for row in plan.rows} <= {DECODE_ROW}
    assert not plan.preempted
    scheduler.advance(plan)
    commit(scheduler, plan)


def test_a_row_at_the_end_of_the_context_keeps_all_from_drafting() -> None:
    scheduler = decoding(2, prompt=3, output=40, context_limit=12, step_tokens=40)
    elder, younger = scheduler.running
    while elder.written < 8:
        step(scheduler)
    # Padding is written too: five positions behind the ninth would leave the table.
    younger.length_limit = 100
    younger.drafts = [1, 2, 3, 4, 5]
    plan = scheduler.plan()
    assert plan.draft_depth == 0
    assert scheduler.counters()["draft: none, context limit"] == 1


def test_row_shapes() -> None:
    request = make_request(1, 5)
    request.move(State.PREFILLING)
    request.move(State.DECODING)
    request.written = 4
    assert row_shape(request, 1) is DECODE_ROW
    assert row_shape(request, 4, 3).draws == 4
    for tokens, depth in ((3, 3), (2, 0), (1, 1)):
        with pytest.raises(ValueError, match="draft depth"):
            row_shape(request, tokens, depth)


def test_the_batch_of_rows_with_drafts() -> None:
    tables = BlockTables(EntryAllocator(20), rows=3, entry_tokens=4, context_limit=32)
    builder = BatchBuilder(tables, step_tokens=24, max_rows=3)
    plan = StepPlan()
    for sequence, (length, drafts) in enumerate(((6, (40, -1)), (3, (41, 42)))):
        request = make_request(sequence, length)
        request.row = tables.open()
        request.move(State.PREFILLING)
        request.move(State.DECODING)
        request.written = length - 1
        tables.extend(request.row, length + 2)
        plan.add(request, 3, drafts)
    late = make_request(5, 7)
    late.row = tables.open()
    late.move(State.PREFILLING)
    tables.extend(late.row, 7)
    plan.add(late, 7)
    batch = builder.build(plan)
    assert batch.input_ids.tolist() == [5, 40, 0, 1002, 41, 42, *range(5000, 5007)]
    assert batch.positions.tolist() == [5, 6, 7, 2, 3, 4, *range(7)]
    assert batch.query_start.tolist() == [0, 3, 6, 13]
    assert batch.context_len.tolist() == [8, 5, 7]
    assert batch.sample_index.tolist() == [0, 1, 2, 3, 4, 5, 12]
    assert len(set(batch.write_slot.tolist())) == 13


def test_a_trimmed_table_row_is_another_row_to_its_readers() -> None:
    """The same number of entries may come back as other ones."""
    chance = np.random.default_rng(1)
    tables = BlockTables(EntryAllocator(40), rows=3, entry_tokens=4, context_limit=48)
    lengths = dict.fromkeys((tables.open() for _ in range(3)), 0)
    seen: dict[tuple[int, int, int], list[int]] = {}
    for _ in range(500):
        row = int(chance.integers(3))
        if chance.random() < 0.5:
            lengths[row] = min(48, lengths[row] + int(chance.integers(1, 9)))
            tables.extend(row, lengths[row])
        else:
            lengths[row] = int(chance.integers(0, lengths[row] + 1))
            before = tables.mapping(row)
            cut = tables.trim(row, lengths[row])
            tables.allocator.give_back(cut)
            assert (tables.mapping(row) == before) == (not cut)
        tables.check_integrity()
        assert tables.held(row) == tables.entries_for(lengths[row])
        held = tables.span(row, 0, tables.held(row))
        assert seen.setdefault(tables.mapping(row), held) == held
