"""The block tables on the device, kept up with what changed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from antiphon_llm.engine.uploads import UploadGroup
from antiphon_llm.kvcache.block_table import BlockTables

_STEP_ROOM = 4
"""Table places for each row, in a step's ordinary update: a decode step adds one at most."""


class DeviceTables:
    """A device copy of the tables, row for row, with one more row that stays null.

    Batches gather their rows from it, so that neither a new order nor a row that left costs
    an upload: a step sends the entries that were appended since a row was last published. A
    row of another lineage is cleared on the device and then sent from its beginning.
    ``prepare`` notes what the tables hold now; only ``publish`` advances what the device is
    known to hold.
    """

    def __init__(self, tables: BlockTables, device: torch.device, *, step_tokens: int) -> None:
        rows, width = tables.table.shape
        self.tensor = torch.zeros((rows + 1, width), dtype=torch.int32, device=device)
        self.null_row = rows
        self._tables = tables
        self._published: dict[int, tuple[int, int]] = {}
        self._prepared: dict[int, tuple[int, int]] = {}
        self._count = self._cleared = 0
        room = max(_STEP_ROOM * rows + step_tokens // tables.entry_tokens, width)
        self.places = torch.zeros(room, dtype=torch.int64, device=device)
        self.entries = torch.zeros(room, dtype=torch.int32, device=device)
        self.cleared = torch.zeros(rows, dtype=torch.int64, device=device)
        self.counters = {"table places": 0, "table rows whole": 0}

    @property
    def targets(self) -> dict[str, torch.Tensor]:
        """Members of the group that carries updates."""
        return {
            "table_places": self.places,
            "table_entries": self.entries,
            "table_cleared": self.cleared,
        }

    def prepare(self, rows: Iterable[int], uploads: UploadGroup) -> None:
        """Stages the differences of these rows; leaves the group alone when there are none."""
        places: list[np.ndarray] = []
        entries: list[np.ndarray] = []
        cleared: list[int] = []
        self._prepared.clear()
        self._count = self._cleared = 0
        width = self.tensor.shape[1]
        for row in rows:
            _, version, held = self._tables.mapping(row)
            known = self._published.get(row)
            if known == (version, held):
                continue
            begin = 0
            if known is not None and known[0] == version and known[1] <= held:
                begin = known[1]
            elif known is not None:
                cleared.append(row)
            self._prepared[row] = version, held
            places.append(np.arange(row * width + begin, row * width + held))
            entries.append(self._tables.table[row, begin:held])
            self._count += held - begin
        if self._count > len(self.places):
            self._rows_whole()
            return
        if cleared:
            self._cleared = len(cleared)
            uploads.take("table_cleared", self._cleared)[:] = cleared
        if self._count:
            np.concatenate(places, out=uploads.take("table_places", self._count))
            np.concatenate(entries, out=uploads.take("table_entries", self._count))

    def publish(self) -> None:
        """Enqueues the update after the group that carries it."""
        if self._cleared:
            self.tensor.index_fill_(0, self.cleared[: self._cleared], 0)
        if self._count:
            self.tensor.view(-1).index_copy_(
                0, self.places[: self._count], self.entries[: self._count]
            )
            self.counters["table places"] += self._count
        self._published.update(self._prepared)
        self._prepared.clear()
        self._count = self._cleared = 0

    def _rows_whole(self) -> None:
        """Copies rows one by one: admissions with long cached prefixes exceed a step's room.

        The source is pageable, so each copy ends before it returns; this is rare.
        """
        for row in self._prepared:
            self.tensor[row].copy_(torch.from_numpy(self._tables.table[row]))
        self.counters["table rows whole"] += len(self._prepared)
        self._count = 0
