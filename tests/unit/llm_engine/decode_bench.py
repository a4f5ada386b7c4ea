"""Tables and both paths of steps on the host, with requests to put into them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from antiphon_llm.engine.cuda.decode_path import DecodeMeta, DecodePath
from antiphon_llm.engine.cuda.device import HostDevice
from antiphon_llm.engine.cuda.graphs import DecodeShape
from antiphon_llm.engine.cuda.prefill_path import PrefillPath
from antiphon_llm.engine.cuda.tables import DeviceTables
from antiphon_llm.engine.plan import PlannedRow, RowShape
from antiphon_llm.engine.request import Request, State, Timings
from antiphon_llm.engine.uploads import StepUploads
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables

ROWS, ENTRY_TOKENS, CONTEXT, STEP_TOKENS, WIDTH = 6, 4, 80, 64, 5
CPU = torch.device("cpu")


class Bench:
    """Tables on host and device, both paths, and requests to put into steps."""

    def __init__(self) -> None:
        self.tables = BlockTables(
            EntryAllocator(120), rows=ROWS, entry_tokens=ENTRY_TOKENS, context_limit=CONTEXT
        )
        self.device = DeviceTables(self.tables, CPU, step_tokens=STEP_TOKENS)
        self.decode = DecodePath(self.tables, self.device, device=CPU, max_width=WIDTH)
        self.prefill = PrefillPath(self.tables, self.device, step_tokens=STEP_TOKENS, device=CPU)
        self.uploads = StepUploads(HostDevice(), slots=1, mode="packed")
        self.group = self.uploads.group("decode", {**self.decode.targets, **self.device.targets})
        self.prefill_group = self.uploads.group("prefill", self.prefill.targets)
        self.whole_group = self.uploads.group("tables", self.device.whole_targets)

    def request(self, tokens: list[int], held: int = 0) -> Request:
        request = Request("r", 1, tokens, len(tokens), 9, Timings(0.0))
        request.row = self.tables.open()
        request.state = State.DECODING
        self.tables.extend(request.row, max(held, len(tokens)))
        return request

    def prepare_tables(self, rows: Iterable[int]) -> None:
        self.device.prepare(rows, uploads=self.group, whole_uploads=self.whole_group)

    def publish_tables(self) -> None:
        self.group.publish()
        self.whole_group.publish()
        self.device.publish()

    def step(self, live: list[PlannedRow], rows: int, width: int = 1) -> DecodeMeta:
        """A published decode step with its tables gathered, as the recorded work does."""
        self.uploads.open()
        self.prepare_tables(row.request.row for row in live)
        meta = self.decode.prepare(live, shape=DecodeShape(rows, width), uploads=self.group)
        self.publish_tables()
        self.uploads.seal()
        torch.index_select(self.device.tensor, 0, meta.table_row, out=meta.block_table)
        return meta


def decode_row(request: Request, start: int) -> PlannedRow:
    return PlannedRow(request, start, RowShape(1, draws=1), request.epoch)


def contents(meta: DecodeMeta, rows: int) -> dict[str, list[object]]:
    """What the first rows say."""
    return {
        name: tensor[: rows + 1 if name == "query_start" else rows].tolist()
        for name, tensor in meta.tensors().items()
    }
