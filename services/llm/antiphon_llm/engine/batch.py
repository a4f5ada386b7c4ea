"""A step's rows as flat tensors, built once and read by every layer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.models.adapters import AdaptedTokens
from antiphon_llm.models.block import WantedRows

from .plan import PlannedRow, StepClass, StepPlan

_KEPT_VIEWS = 64


@dataclass(frozen=True, slots=True)
class StepBatch:
    """N tokens of B rows without a batch axis; decode rows come first.

    The tensors are views of buffers that a later step's build overwrites.
    """

    input_ids: torch.Tensor
    """int32 (N). A token that the host does not know yet, because the step that draws it is
    still running, stands as ``-1 - row``: the last token drawn for that table row."""
    positions: torch.Tensor
    """int32 (N), absolute."""
    query_start: torch.Tensor
    """int32 (B+1), offsets of the rows' tokens."""
    context_len: torch.Tensor
    """int32 (B), written tokens of each row after this step."""
    block_table: torch.Tensor
    """int32 (B, W), entry ids; unused places are the null entry."""
    write_slot: torch.Tensor
    """int64 (N), place of each token in the pool."""
    sample_index: torch.Tensor
    """int64 (R), tokens whose hidden state is drawn from, in the order of the rows."""
    block_tokens: int
    max_query: int
    max_context: int
    step_class: StepClass
    adapter_slots: torch.Tensor | None = None
    """int32 (N), each token's adapter, 0 for the model itself; None where no token has one."""
    active_adapters: torch.Tensor | None = None
    """See AdaptedTokens."""

    @property
    def adapted(self) -> AdaptedTokens | None:
        """What a forward pass is told of the adapters."""
        if self.adapter_slots is None:
            return None
        return AdaptedTokens(self.adapter_slots, self.active_adapters)


class BatchBuilder:
    """Fills preallocated host buffers; nothing is allocated per step but views.

    ``slots`` sets of buffers are used in turn, so that a batch stays valid while the next
    ``slots - 1`` are built.
    """

    def __init__(
        self, tables: BlockTables, *, step_tokens: int, max_rows: int, slots: int = 1
    ) -> None:
        self._tables = tables
        self._slots = [_Slot(tables, step_tokens, max_rows) for _ in range(slots)]
        self._turn = 0

    def build(self, plan: StepPlan) -> StepBatch:
        """The batch of a plan whose entries are held already."""
        slot = self._slots[self._turn]
        token = sampled = max_query = max_context = 0
        adapted = any(row.request.adapter_slot for row in plan.rows)
        for index, row in enumerate(plan.rows):
            count, end = row.shape.tokens, token + row.shape.tokens
            fill_row(
                self._tables,
                row,
                slot.input_ids.host[token:end],
                slot.positions.host[token:end],
                slot.write_slot.host[token:end],
            )
            slot.query_start.host[index + 1] = end
            slot.context_len.host[index] = row.end
            if adapted:
                slot.adapter_slots.host[token:end] = row.request.adapter_slot
            draws = row.shape.draws
            if draws:
                slot.sample_index.host[sampled : sampled + draws] = range(end - draws, end)
                sampled += draws
            max_query = max(max_query, count)
            max_context = max(max_context, row.end)
            token = end
        # Only now: a build that fails leaves its slot to the next, for the other may be in use.
        self._turn = (self._turn + 1) % len(self._slots)
        return StepBatch(
            input_ids=slot.input_ids.first(token),
            positions=slot.positions.first(token),
            query_start=slot.query_start.first(len(plan.rows) + 1),
            context_len=slot.context_len.first(len(plan.rows)),
            block_table=slot.publish_tables(self._tables, plan),
            write_slot=slot.write_slot.first(token),
            sample_index=slot.sample_index.first(sampled),
            block_tokens=self._tables.entry_tokens,
            max_query=max_query,
            max_context=max_context,
            step_class=plan.step_class,
            adapter_slots=slot.adapter_slots.first(token) if adapted else None,
        )


def wanted_rows(plan: StepPlan, batch: StepBatch) -> WantedRows:
    """The tokens that a step draws from, as a batch of their own over the same tables."""
    places = [place for place, row in enumerate(plan.rows) if row.shape.draws]
    draws = [plan.rows[place].shape.draws for place in places]
    rows = torch.tensor(places, dtype=torch.int64)
    return WantedRows(
        tokens=batch.sample_index,
        query_start=torch.tensor([0, *accumulate(draws)], dtype=torch.int32),
        context_len=batch.context_len.index_select(0, rows),
        block_table=batch.block_table.index_select(0, rows),
        block_tokens=batch.block_tokens,
        max_query=max(draws, default=0),
        max_context=batch.max_context,
    )


def fill_row(
    tables: BlockTables,
    row: PlannedRow,
    input_ids: np.ndarray,
    positions: np.ndarray,
    write_slot: np.ndarray,
) -> None:
    """One row's token columns, each (n): int32 ids and positions, int64 slots. Padding among the
    drafts runs as id 0."""
    request, start, end = row.request, row.start, row.end
    known = request.tokens[start : end - len(row.drafts)]
    input_ids[: len(known)] = known
    if row.drafts:
        input_ids[len(known) :] = [max(draft, 0) for draft in row.drafts]
    else:
        input_ids[len(known) :] = -1 - request.row
    positions[:] = range(start, end)
    tables.write_slots(request.row, start, end - start, write_slot)


class _Slot:
    """One set of host buffers and what its table rows hold."""

    def __init__(self, tables: BlockTables, step_tokens: int, max_rows: int) -> None:
        self.input_ids = _Buffer(step_tokens, np.int32)
        self.positions = _Buffer(step_tokens, np.int32)
        self.write_slot = _Buffer(step_tokens, np.int64)
        self.query_start = _Buffer(max_rows + 1, np.int32)
        self.context_len = _Buffer(max_rows, np.int32)
        self.sample_index = _Buffer(step_tokens, np.int64)
        self.adapter_slots = _Buffer(step_tokens, np.int32)
        self._block_table = _Buffer((max_rows, tables.width), np.int32)
        self._published: list[tuple[int, int, int]] = []

    def publish_tables(self, tables: BlockTables, plan: StepPlan) -> torch.Tensor:
        """Copies only the table rows whose mapping differs from what this slot holds."""
        mapping = [tables.mapping(row.request.row) for row in plan.rows]
        published = self._published
        for index, key in enumerate(mapping):
            if index >= len(published) or published[index] != key:
                self._block_table.host[index] = tables.table[key[0]]
        # Rows past this batch keep their contents, and so stay published.
        self._published = mapping + published[len(mapping) :]
        return self._block_table.first(len(mapping))


class _Buffer:
    """Host memory and the tensor that the model reads; one storage on CPU."""

    def __init__(self, shape: int | tuple[int, int], dtype: type[np.generic]) -> None:
        self.host = np.zeros(shape, dtype=dtype)
        self._device = torch.from_numpy(self.host)
        self._views: dict[int, torch.Tensor] = {}

    def first(self, count: int) -> torch.Tensor:
        """The first elements or rows; views of decode steps, which recur, are kept."""
        kept = self._views.get(count)
        if kept is None:
            kept = self._device[:count]
            if count <= _KEPT_VIEWS:
                self._views[count] = kept
        return kept
