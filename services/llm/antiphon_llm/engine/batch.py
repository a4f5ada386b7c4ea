"""A step's rows as flat tensors, built once and read by every layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from antiphon_llm.kvcache.block_table import BlockTables

from .plan import StepClass, StepPlan

_KEPT_VIEWS = 64


@dataclass(frozen=True, slots=True)
class StepBatch:
    """N tokens of B rows without a batch axis; decode rows come first.

    The tensors are views of buffers that the next step's build overwrites.
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
    """int64 (R), tokens whose hidden state is drawn from."""
    block_tokens: int
    max_query: int
    max_context: int
    total_kv: int
    step_class: StepClass


class BatchBuilder:
    """Fills preallocated host buffers; nothing is allocated per step but views."""

    def __init__(self, tables: BlockTables, *, step_tokens: int, max_rows: int) -> None:
        self._tables = tables
        self._input_ids = _Buffer(step_tokens, np.int32)
        self._positions = _Buffer(step_tokens, np.int32)
        self._write_slot = _Buffer(step_tokens, np.int64)
        self._query_start = _Buffer(max_rows + 1, np.int32)
        self._context_len = _Buffer(max_rows, np.int32)
        self._sample_index = _Buffer(max_rows, np.int64)
        self._block_table = _Buffer((max_rows, tables.width), np.int32)
        self._published: list[tuple[int, int, int]] = []

    def build(self, plan: StepPlan) -> StepBatch:
        """The batch of a plan whose entries are held already."""
        token = sampled = max_query = total_kv = max_context = 0
        for index, row in enumerate(plan.rows):
            count, end = row.shape.tokens, token + row.shape.tokens
            known = row.request.tokens[row.start : row.end]
            self._input_ids.host[token : token + len(known)] = known
            self._input_ids.host[token + len(known) : end] = -1 - row.request.row
            self._positions.host[token:end] = range(row.start, row.end)
            self._tables.write_slots(
                row.request.row, row.start, count, self._write_slot.host[token:end]
            )
            self._query_start.host[index + 1] = end
            self._context_len.host[index] = row.end
            if row.shape.samples:
                self._sample_index.host[sampled] = end - 1
                sampled += 1
            max_query = max(max_query, count)
            max_context = max(max_context, row.end)
            total_kv += row.end
            token = end
        return StepBatch(
            input_ids=self._input_ids.first(token),
            positions=self._positions.first(token),
            query_start=self._query_start.first(len(plan.rows) + 1),
            context_len=self._context_len.first(len(plan.rows)),
            block_table=self._publish_tables(plan),
            write_slot=self._write_slot.first(token),
            sample_index=self._sample_index.first(sampled),
            block_tokens=self._tables.entry_tokens,
            max_query=max_query,
            max_context=max_context,
            total_kv=total_kv,
            step_class=plan.step_class,
        )

    def _publish_tables(self, plan: StepPlan) -> torch.Tensor:
        """Copies only the table rows whose mapping differs from the last step's."""
        mapping = [self._tables.mapping(row.request.row) for row in plan.rows]
        published = self._published
        for index, key in enumerate(mapping):
            if index >= len(published) or published[index] != key:
                self._block_table.host[index] = self._tables.table[key[0]]
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
