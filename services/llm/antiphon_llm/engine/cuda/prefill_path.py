"""The only producer of prefill metadata, for eager steps, recordings and replays alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from antiphon_llm.engine.batch import StepBatch, fill_row
from antiphon_llm.engine.plan import PlannedRow, StepClass
from antiphon_llm.engine.uploads import UploadGroup
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.models.block import WantedRows

from .decode_path import active_adapters, stage_adapters
from .prefill_graphs import ROWS, PrefillKey
from .tables import DeviceTables


class PrefillPath:
    """Fixed device memory for up to ``step_tokens`` tokens of up to ``max_rows`` rows."""

    def __init__(
        self,
        tables: BlockTables,
        device_tables: DeviceTables,
        *,
        step_tokens: int,
        device: torch.device,
        adapters: int = 0,
    ) -> None:
        table_rows, width = tables.table.shape
        max_rows = max(table_rows, ROWS)
        self._tables = tables
        self._device_tables = device_tables
        ints = {"dtype": torch.int32, "device": device}
        longs = {"dtype": torch.int64, "device": device}
        self.targets = {
            "input_ids": torch.zeros(step_tokens, **ints),
            "positions": torch.zeros(step_tokens, **ints),
            "write_slot": torch.zeros(step_tokens, **longs),
            "query_start": torch.zeros(max_rows + 1, **ints),
            "context_len": torch.zeros(max_rows, **ints),
            "table_row": torch.zeros(max_rows, **longs),
            "sample_index": torch.zeros(max_rows, **longs),
            "sample_context": torch.zeros(max_rows, **ints),
            "sample_table_row": torch.zeros(max_rows, **longs),
        }
        if adapters:
            self.targets["adapter_slots"] = torch.zeros(step_tokens, **ints)
            self.targets["active_adapters"] = torch.zeros(adapters, **ints)
        self._block_table = torch.zeros((max_rows, width), **ints)
        self._sample_table = torch.zeros((max_rows, width), **ints)
        self._sample_start = torch.arange(max_rows + 1, **ints)
        self._views: dict[PrefillKey, StepBatch] = {}

    def prepare(
        self, rows: Sequence[PlannedRow], *, uploads: UploadGroup, key: PrefillKey | None = None
    ) -> StepBatch:
        """Stages the rows' metadata; its block tables are filled by :meth:`gather`.

        With a key the batch is that of the recording: its tail reads and writes the null entry
        and belongs to no row, missing rows have no query.
        """
        live = sum(row.shape.tokens for row in rows)
        tokens, places = (key.tokens, ROWS) if key else (live, len(rows))
        input_ids = uploads.take("input_ids", tokens)
        positions = uploads.take("positions", tokens)
        write_slot = uploads.take("write_slot", tokens)
        query_start = uploads.take("query_start", places + 1)
        query_start[0] = end = 0
        sampled: list[int] = []
        drawn: list[PlannedRow] = []
        for index, row in enumerate(rows):
            begin, end = end, end + row.shape.tokens
            span = slice(begin, end)
            fill_row(self._tables, row, input_ids[span], positions[span], write_slot[span])
            query_start[index + 1] = end
            if row.shape.samples:
                sampled.append(end - 1)
                drawn.append(row)
        for column in (input_ids, positions, write_slot):
            column[live:] = 0
        query_start[len(rows) + 1 :] = end
        samples = ROWS if key else len(drawn)
        null_row = self._device_tables.null_row
        self._stage(uploads, "context_len", places, [row.end for row in rows], 1)
        self._stage(uploads, "table_row", places, [row.request.row for row in rows], null_row)
        self._stage(uploads, "sample_index", samples, sampled, 0)
        self._stage(uploads, "sample_context", samples, [row.end for row in drawn], 1)
        owners = [row.request.row for row in drawn]
        self._stage(uploads, "sample_table_row", samples, owners, null_row)
        if key:
            return self.views(key)
        batch = self._batch(
            tokens,
            places,
            samples,
            max_query=max(row.shape.tokens for row in rows),
            max_context=max(row.end for row in rows),
        )
        active = len(active_adapters(rows))
        if not active:
            return batch
        stage_adapters(rows, [row.shape.tokens for row in rows], tokens, active, uploads)
        return replace(
            batch,
            adapter_slots=self.targets["adapter_slots"][:tokens],
            active_adapters=self.targets["active_adapters"][:active],
        )

    def views(self, key: PrefillKey) -> StepBatch:
        """The batch of a recording; always the same tensors."""
        if key not in self._views:
            self._views[key] = self._batch(
                key.tokens, ROWS, ROWS, max_query=key.tokens, max_context=key.context
            )
        return self._views[key]

    def _batch(
        self, tokens: int, rows: int, samples: int, *, max_query: int, max_context: int
    ) -> StepBatch:
        return StepBatch(
            input_ids=self.targets["input_ids"][:tokens],
            positions=self.targets["positions"][:tokens],
            query_start=self.targets["query_start"][: rows + 1],
            context_len=self.targets["context_len"][:rows],
            block_table=self._block_table[:rows],
            write_slot=self.targets["write_slot"][:tokens],
            sample_index=self.targets["sample_index"][:samples],
            block_tokens=self._tables.entry_tokens,
            max_query=max_query,
            max_context=max_context,
            step_class=StepClass.PREFILL,
        )

    @staticmethod
    def _stage(
        uploads: UploadGroup, name: str, count: int, values: Sequence[int], padding: int
    ) -> None:
        column = uploads.take(name, count)
        column[: len(values)] = values
        column[len(values) :] = padding

    def gather(self, batch: StepBatch) -> None:
        """Fills the batch's block table from the device tables, in stream order."""
        self._gather("table_row", batch.block_table)

    def wanted(self, batch: StepBatch) -> WantedRows:
        """The last token of each row that samples, as a batch of its own, after ``gather``."""
        count = batch.sample_index.shape[0]
        table = self._sample_table[:count]
        self._gather("sample_table_row", table)
        return WantedRows(
            tokens=batch.sample_index,
            query_start=self._sample_start[: count + 1],
            context_len=self.targets["sample_context"][:count],
            block_table=table,
            block_tokens=batch.block_tokens,
            max_query=1,
            max_context=batch.max_context,
        )

    def _gather(self, rows: str, out: torch.Tensor) -> None:
        index = self.targets[rows][: out.shape[0]]
        torch.index_select(self._device_tables.tensor, 0, index, out=out)
