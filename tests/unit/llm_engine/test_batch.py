"""The batch builder against a naive one, and what it does not write."""

from __future__ import annotations

import numpy as np
import torch
from antiphon_llm.engine.batch import BatchBuilder, StepBatch
from antiphon_llm.engine.plan import PlannedRow, RowShape, StepClass, StepPlan
from antiphon_llm.engine.request import Request, State, Timings
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.messages import Sampling
from antiphon_llm.sampler.row import SamplerRow

ENTRY_TOKENS = 4


class Bench:
    """Tables, a builder and requests that can be put into plans."""

    def __init__(self, slots: int = 1) -> None:
        self.tables = BlockTables(
            EntryAllocator(200), rows=6, entry_tokens=ENTRY_TOKENS, context_limit=100
        )
        self.builder = BatchBuilder(self.tables, step_tokens=200, max_rows=6, slots=slots)

    def request(self, tokens: list[int], *, written: int = 0, decoding: bool = False) -> Request:
        sampler = SamplerRow(Sampling(), choice=0, prompt_ids=tokens, end_ids=[], vocabulary=64)
        request = Request("r", 1, tokens, len(tokens), 9, Timings(0.0), sampler=sampler)
        request.row = self.tables.open()
        request.written = written
        request.state = State.DECODING if decoding else State.PREFILLING
        return request

    def build(self, parts: list[tuple[Request, int]]) -> StepBatch:
        plan = StepPlan()
        for request, count in parts:
            self.tables.extend(request.row, request.written + count)
            plan.add(request, count)
        return self.builder.build(plan)


def naive(bench: Bench, parts: list[tuple[Request, int]]) -> dict[str, list[int]]:
    """The flat columns, token by token."""
    columns: dict[str, list[int]] = {
        name: [] for name in ("input_ids", "positions", "write_slot", "sample_index",
                              "context_len")
    }  # fmt: skip
    columns["query_start"] = [0]
    for request, count in parts:
        for position in range(request.written, request.written + count):
            entry = int(bench.tables.table[request.row][position // ENTRY_TOKENS])
            columns["input_ids"].append(request.tokens[position])
            columns["positions"].append(position)
            columns["write_slot"].append(entry * ENTRY_TOKENS + position % ENTRY_TOKENS)
        columns["query_start"].append(len(columns["input_ids"]))
        columns["context_len"].append(request.written + count)
        if request.written + count == len(request.tokens):
            columns["sample_index"].append(len(columns["input_ids"]) - 1)
    return columns


def test_random_batches_equal_the_naive_builder(rng: np.random.Generator) -> None:
    for _ in range(40):
        bench = Bench()
        parts: list[tuple[Request, int]] = []
        decoders = int(rng.integers(0, 4))
        for index in range(int(rng.integers(max(1, decoders), 7))):
            tokens = rng.integers(0, 1000, int(rng.integers(1, 90))).tolist()
            if index < decoders:
                parts.append((bench.request(tokens, written=len(tokens) - 1, decoding=True), 1))
            else:
                written = int(rng.integers(0, len(tokens)))
                count = int(rng.integers(1, min(30, len(tokens) - written) + 1))
                parts.append((bench.request(tokens, written=written), count))
        batch = bench.build(parts)
        for name, expected in naive(bench, parts).items():
            assert getattr(batch, name).tolist() == expected, name
        rows = [request.row for request, _ in parts]
        assert batch.block_table.tolist() == bench.tables.table[rows].tolist()
        assert batch.max_query == max(count for _, count in parts)
        assert batch.max_context == int(batch.context_len.max())
        only_decodes = decoders == len(parts)
        assert batch.step_class is (StepClass.DECODE if only_decodes else StepClass.PREFILL)


def test_dtypes() -> None:
    bench = Bench()
    batch = bench.build([(bench.request([1, 2, 3]), 3)])
    for name in ("write_slot", "sample_index"):
        assert getattr(batch, name).dtype == torch.int64, name
    for name in ("input_ids", "positions", "query_start", "context_len", "block_table"):
        assert getattr(batch, name).dtype == torch.int32, name


def test_a_token_that_is_still_being_drawn_is_named_by_its_row() -> None:
    bench = Bench()
    first, second = bench.request([1, 2, 3]), bench.request([4, 5, 6, 7])
    for request in (first, second):
        bench.tables.extend(request.row, len(request.tokens) + 1)
    ahead = PlannedRow(second, len(second.tokens), RowShape(1, draws=1), epoch=0)
    known = PlannedRow(first, len(first.tokens) - 1, RowShape(1, draws=1), epoch=0)
    batch = bench.builder.build(StepPlan(rows=[ahead, known], decode_tokens=2, decode_rows=2))
    assert batch.input_ids.tolist() == [-1 - second.row, 3]
    assert batch.positions.tolist() == [4, 2]
    assert batch.context_len.tolist() == [5, 3]


def test_an_unchanged_mapping_writes_no_table_row() -> None:
    bench = Bench()
    first, second = bench.request([1] * 30), bench.request([2] * 30)
    table = bench.build([(first, 5), (second, 5)]).block_table
    table[:, -1] = 99
    first.written = second.written = 5
    assert bench.build([(first, 1), (second, 3)]).block_table[:, -1].tolist() == [99, 99]
    first.written, second.written = 6, 8
    after = bench.build([(first, 1), (second, 1)]).block_table
    assert after[:, -1].tolist() == [99, 0], "only the row that got an entry is written"
    swapped = bench.build([(second, 1), (first, 1)]).block_table
    assert swapped.tolist() == bench.tables.table[[second.row, first.row]].tolist()


def test_slots_are_used_in_turn_and_know_what_their_tables_hold() -> None:
    bench = Bench(slots=2)
    first, second = bench.request([1] * 30), bench.request([2] * 30)
    one = bench.build([(first, 5)])
    first.written = 5
    two = bench.build([(first, 9), (second, 4)])
    assert one.input_ids.tolist() == [1] * 5, "the next build leaves a batch alone"
    assert one.context_len.tolist() == [5]
    first.written, second.written = 14, 4
    three = bench.build([(first, 1), (second, 1)])
    assert three.input_ids.data_ptr() == one.input_ids.data_ptr()
    assert two.context_len.tolist() == [14, 4]
    expected = bench.tables.table[[first.row, second.row]].tolist()
    assert three.block_table.tolist() == expected
