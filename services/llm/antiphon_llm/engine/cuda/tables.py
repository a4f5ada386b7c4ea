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
    row of another lineage is cleared on the device and then sent from its beginning. Where that
    exceeds a step's room, as when long cached prefixes are admitted together, the rows that
    changed are sent whole.
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
        self._count = self._cleared = self._whole = 0
        room = max(_STEP_ROOM * rows + step_tokens // tables.entry_tokens, width)
        self.places = torch.zeros(room, dtype=torch.int64, device=device)
        self.entries = torch.zeros(room, dtype=torch.int32, device=device)
        self.cleared = torch.zeros(rows, dtype=torch.int64, device=device)
        self.whole_rows = torch.zeros(rows, dtype=torch.int64, device=device)
        self.whole = torch.zeros((rows, width), dtype=torch.int32, device=device)
        self.counters = {"table places": 0, "table rows whole": 0}

    @property
    def targets(self) -> dict[str, torch.Tensor]:
        """Members of the group that carries updates."""
        return {
            "table_places": self.places,
            "table_entries": self.entries,
            "table_cleared": self.cleared,
        }

    @property
    def whole_targets(self) -> dict[str, torch.Tensor]:
        """Members of a group of their own: they are large, and a scatter costs every step as
        much as its group's largest member."""
        return {"whole_rows": self.whole_rows, "whole": self.whole}

    def prepare(
        self, rows: Iterable[int], *, uploads: UploadGroup, whole_uploads: UploadGroup
    ) -> None:
        """Stages the differences of these rows in one of the groups; in neither when there are
        none."""
        places: list[np.ndarray] = []
        entries: list[np.ndarray] = []
        cleared: list[int] = []
        self._prepared.clear()
        self._count = self._cleared = self._whole = 0
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
            self._take_whole_rows(whole_uploads)
            return
        if cleared:
            self._cleared = len(cleared)
            uploads.take("table_cleared", self._cleared)[:] = cleared
        if self._count:
            np.concatenate(places, out=uploads.take("table_places", self._count))
            np.concatenate(entries, out=uploads.take("table_entries", self._count))

    def publish(self) -> None:
        """Enqueues the update after the group that carries it."""
        if self._whole:
            self.tensor.index_copy_(0, self.whole_rows[: self._whole], self.whole[: self._whole])
            self.counters["table rows whole"] += self._whole
        if self._cleared:
            self.tensor.index_fill_(0, self.cleared[: self._cleared], 0)
        if self._count:
            self.tensor.view(-1).index_copy_(
                0, self.places[: self._count], self.entries[: self._count]
            )
            self.counters["table places"] += self._count
        self._published.update(self._prepared)
        self._prepared.clear()
        self._count = self._cleared = self._whole = 0

    def _take_whole_rows(self, uploads: UploadGroup) -> None:
        """Stages every row that changed, its null tail included."""
        rows = list(self._prepared)
        self._count, self._whole = 0, len(rows)
        uploads.take("whole_rows", len(rows))[:] = rows
        contents = self._tables.table[rows]
        uploads.take("whole", contents.size)[:] = contents.ravel()
