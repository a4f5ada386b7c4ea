"""The only producer of decode metadata, for eager steps, recordings and replays alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from antiphon_llm.engine.plan import PlannedRow
from antiphon_llm.engine.uploads import UploadGroup
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.models.adapters import AdaptedTokens

from .graphs import DecodeShape
from .tables import DeviceTables


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeMeta:
    """B rows of W tokens each; views of fixed memory, the same for every step of that shape.

    A row feeds its last token and then its drafts, padding among them as id 0.
    """

    shape: DecodeShape
    input_ids: torch.Tensor
    """int32 (B W); ``-1 - row`` is the last token drawn for that table row."""
    positions: torch.Tensor
    """int32 (B W)."""
    table_row: torch.Tensor
    """int64 (B), row of the device tables; the null row in padding."""
    query_start: torch.Tensor
    """int32 (B+1)."""
    context_len: torch.Tensor
    """int32 (B), this step's tokens included; W in padding rows."""
    block_table: torch.Tensor
    """int32 (B, places), gathered by the step itself."""
    write_slot: torch.Tensor
    """int64 (B W); slot 0, of the null entry, in padding."""
    adapted: AdaptedTokens | None
    """The tokens' adapters; None where all are the model's own."""
    block_tokens: int
    max_context: int
    """Bound of any context that the tables can hold, so that a recording serves all."""

    @property
    def max_query(self) -> int:
        """Tokens of each row."""
        return self.shape.width

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything on the device that a recording of these rows reads."""
        found = {
            name: value
            for name in self.__slots__
            if isinstance(value := getattr(self, name), torch.Tensor)
        }
        if self.adapted is not None and self.adapted.active is not None:
            found["adapter_slots"] = self.adapted.slots
            found["active_adapters"] = self.adapted.active
        return found


class DecodePath:
    """Fixed device memory for up to ``max_rows`` rows of up to ``max_width`` tokens, and its
    cached views by shape.

    Attributes:
        max_context: tokens that a row of the tables can hold.
    """

    def __init__(
        self,
        tables: BlockTables,
        device_tables: DeviceTables,
        *,
        device: torch.device,
        max_width: int = 1,
        adapters: int = 0,
    ) -> None:
        max_rows, places = tables.table.shape
        tokens = max_rows * max_width
        self._tables = tables
        self._null_row = device_tables.null_row
        self.max_context = tables.width * tables.entry_tokens
        ints = {"dtype": torch.int32, "device": device}
        longs = {"dtype": torch.int64, "device": device}
        self._input_ids = torch.zeros(tokens, **ints)
        self._positions = torch.zeros(tokens, **ints)
        self._context_len = torch.ones(max_rows, **ints)
        self._table_row = torch.full((max_rows,), self._null_row, **longs)
        self._write_slot = torch.zeros(tokens, **longs)
        self._adapter_slots = torch.zeros(tokens if adapters else 0, **ints)
        self._active_adapters = torch.zeros(adapters, **ints)
        self._query_start = [
            torch.arange(0, tokens + 1, width, **ints)[: max_rows + 1]
            for width in range(1, max_width + 1)
        ]
        self._block_table = torch.zeros((max_rows, places), **ints)
        self._views: dict[DecodeShape, DecodeMeta] = {}

    @property
    def targets(self) -> dict[str, torch.Tensor]:
        """Members of the group that carries decode metadata."""
        targets = {
            "input_ids": self._input_ids,
            "positions": self._positions,
            "context_len": self._context_len,
            "table_row": self._table_row,
            "write_slot": self._write_slot,
        }
        if len(self._active_adapters):
            targets["adapter_slots"] = self._adapter_slots
            targets["active_adapters"] = self._active_adapters
        return targets

    def views(self, shape: DecodeShape) -> DecodeMeta:
        """The metadata of a shape; always the same tensors."""
        if shape not in self._views:
            rows, tokens = shape.rows, shape.tokens
            self._views[shape] = DecodeMeta(
                shape=shape,
                input_ids=self._input_ids[:tokens],
                positions=self._positions[:tokens],
                table_row=self._table_row[:rows],
                query_start=self._query_start[shape.width - 1][: rows + 1],
                context_len=self._context_len[:rows],
                block_table=self._block_table[:rows],
                write_slot=self._write_slot[:tokens],
                adapted=AdaptedTokens(
                    self._adapter_slots[:tokens], self._active_adapters[: shape.adapters]
                )
                if shape.adapters
                else None,
                block_tokens=self._tables.entry_tokens,
                max_context=self.max_context,
            )
        return self._views[shape]

    def prepare(
        self, live: Sequence[PlannedRow], *, shape: DecodeShape, uploads: UploadGroup
    ) -> DecodeMeta:
        """Stages the metadata of a shape, of whose rows the first are ``live``.

        Eager steps pass just the live rows' shape, replays the recorded one, recordings no live
        row. Rows may be wider than their drafts need. Padding reads and writes the null entry.
        """
        count, rows, width = len(live), shape.rows, shape.width
        if count > rows:
            raise ValueError(f"{count} live rows in a decode step of {rows}")
        input_ids = uploads.take("input_ids", shape.tokens).reshape(rows, width)
        positions = uploads.take("positions", shape.tokens).reshape(rows, width)
        context_len = uploads.take("context_len", rows)
        table_row = uploads.take("table_row", rows)
        write_slot = uploads.take("write_slot", shape.tokens).reshape(rows, width)
        if count:
            planned = live[0].shape.tokens
            starts = np.array([row.start for row in live])
            owners = np.array([row.request.row for row in live])
            spans = starts[:, None] + np.arange(width)
            input_ids[:count, 0] = [_fed(row) for row in live]
            if width > 1:
                drafts = np.array([row.drafts for row in live]).reshape(count, planned - 1)
                np.maximum(drafts, 0, out=input_ids[:count, 1:planned], casting="same_kind")
                input_ids[:count, planned:] = 0
                write_slot[:count, planned:] = 0
            positions[:count] = spans
            np.add(starts, width, out=context_len[:count], casting="same_kind")
            table_row[:count] = owners
            write_slot[:count, :planned] = self._tables.slots_at(
                np.repeat(owners, planned), spans[:, :planned].ravel()
            ).reshape(count, planned)
        if shape.adapters:
            stage_adapters(live, [width] * count, shape.tokens, shape.adapters, uploads)
        input_ids[count:] = 0
        positions[count:] = 0
        context_len[count:] = width
        table_row[count:] = self._null_row
        write_slot[count:] = 0
        return self.views(shape)


def active_adapters(rows: Sequence[PlannedRow]) -> list[int]:
    """The slots of the adapters that rows go through, each once."""
    return sorted({row.request.adapter_slot for row in rows} - {0})


def stage_adapters(
    rows: Sequence[PlannedRow],
    counts: Sequence[int],
    tokens: int,
    active: int,
    uploads: UploadGroup,
) -> None:
    """Stages each token's adapter, ``counts`` tokens a row, then padding; and the active ones."""
    slots = uploads.take("adapter_slots", tokens)
    named = np.repeat([row.request.adapter_slot for row in rows], counts)
    slots[: len(named)] = named
    slots[len(named) :] = 0
    listed = active_adapters(rows)
    target = uploads.take("active_adapters", active)
    target[: len(listed)] = listed
    target[len(listed) :] = 0


def _fed(row: PlannedRow) -> int:
    """The row's token, or what stands for it while the step that draws it still runs."""
    tokens = row.request.tokens
    return tokens[row.start] if row.start < len(tokens) else -1 - row.request.row
