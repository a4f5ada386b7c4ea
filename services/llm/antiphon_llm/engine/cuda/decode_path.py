"""The only producer of decode metadata, for eager steps, recordings and replays alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from antiphon_llm.engine.plan import PlannedRow
from antiphon_llm.engine.uploads import UploadGroup
from antiphon_llm.kvcache.block_table import BlockTables

from .tables import DeviceTables


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeMeta:
    """B rows of one token each; views of fixed memory, the same for every step of B rows."""

    rows: int
    input_ids: torch.Tensor
    """int32 (B); ``-1 - row`` is the last token drawn for that table row."""
    positions: torch.Tensor
    """int32 (B)."""
    table_row: torch.Tensor
    """int64 (B), row of the device tables; the null row in padding."""
    query_start: torch.Tensor
    """int32 (B+1)."""
    context_len: torch.Tensor
    """int32 (B), this step's token included; 1 in padding."""
    block_table: torch.Tensor
    """int32 (B, W), gathered by the step itself."""
    write_slot: torch.Tensor
    """int64 (B); slot 0, of the null entry, in padding."""
    block_tokens: int
    max_context: int
    """Bound of any context that the tables can hold, so that a recording serves all."""
    max_query: int = 1

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything on the device that a recording of these rows reads."""
        return {
            name: value
            for name in self.__slots__
            if isinstance(value := getattr(self, name), torch.Tensor)
        }


class DecodePath:
    """Fixed device memory for up to ``max_rows`` rows, and its cached views by row count."""

    def __init__(
        self, tables: BlockTables, device_tables: DeviceTables, *, device: torch.device
    ) -> None:
        max_rows, width = tables.table.shape
        self._tables = tables
        self._null_row = device_tables.null_row
        ints = {"dtype": torch.int32, "device": device}
        longs = {"dtype": torch.int64, "device": device}
        self._input_ids = torch.zeros(max_rows, **ints)
        self._positions = torch.zeros(max_rows, **ints)
        self._context_len = torch.ones(max_rows, **ints)
        self._table_row = torch.full((max_rows,), self._null_row, **longs)
        self._write_slot = torch.zeros(max_rows, **longs)
        self._query_start = torch.arange(max_rows + 1, **ints)
        self._block_table = torch.zeros((max_rows, width), **ints)
        self._views: dict[int, DecodeMeta] = {}

    @property
    def targets(self) -> dict[str, torch.Tensor]:
        """Members of the group that carries decode metadata."""
        return {
            "input_ids": self._input_ids,
            "positions": self._positions,
            "context_len": self._context_len,
            "table_row": self._table_row,
            "write_slot": self._write_slot,
        }

    def views(self, rows: int) -> DecodeMeta:
        """The metadata of so many rows; always the same tensors."""
        if rows not in self._views:
            self._views[rows] = DecodeMeta(
                rows=rows,
                input_ids=self._input_ids[:rows],
                positions=self._positions[:rows],
                table_row=self._table_row[:rows],
                query_start=self._query_start[: rows + 1],
                context_len=self._context_len[:rows],
                block_table=self._block_table[:rows],
                write_slot=self._write_slot[:rows],
                block_tokens=self._tables.entry_tokens,
                max_context=self._tables.width * self._tables.entry_tokens,
            )
        return self._views[rows]

    def prepare(self, live: Sequence[PlannedRow], *, rows: int, uploads: UploadGroup) -> DecodeMeta:
        """Stages the metadata of ``rows`` rows, of which the first are ``live``.

        Eager steps pass ``rows = len(live)``, replays the recorded row count, recordings no
        live row. Padding reads and writes the null entry.
        """
        count = len(live)
        if count > rows:
            raise ValueError(f"{count} live rows in a decode step of {rows}")
        input_ids = uploads.take("input_ids", rows)
        positions = uploads.take("positions", rows)
        context_len = uploads.take("context_len", rows)
        table_row = uploads.take("table_row", rows)
        write_slot = uploads.take("write_slot", rows)
        if count:
            starts = np.array([row.start for row in live])
            owners = np.array([row.request.row for row in live])
            input_ids[:count] = [_fed(row) for row in live]
            positions[:count] = starts
            np.add(starts, 1, out=context_len[:count], casting="same_kind")
            table_row[:count] = owners
            write_slot[:count] = self._tables.slots_at(owners, starts)
        input_ids[count:] = 0
        positions[count:] = 0
        context_len[count:] = 1
        table_row[count:] = self._null_row
        write_slot[count:] = 0
        return self.views(rows)


def _fed(row: PlannedRow) -> int:
    """The row's token, or what stands for it while the step that draws it still runs."""
    tokens = row.request.tokens
    return tokens[row.start] if row.start < len(tokens) else -1 - row.request.row
