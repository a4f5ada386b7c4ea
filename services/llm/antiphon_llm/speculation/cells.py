"""Which places of a drafter's own cache hold what the row's tokens say they should.

A drafter keeps its keys and values in fields of the target's KV pool, at the places of the
target's entries. So they are priced with them, parked and brought back with them, and found
again by a request that shares a cached prefix. But the target writes every place of an entry
before anyone reads it, and a drafter may not have: what it wrote is noted here by entry, and a
note ends when the entry is taken anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon_llm.kvcache.block_table import BlockTables


@dataclass(slots=True)
class _Known:
    """Cells ``first .. end - 1`` of a row's lineage are written."""

    version: int
    first: int
    end: int


class CellMarks:
    """One run of written cells for each entry, and one for each row."""

    def __init__(self, tables: BlockTables) -> None:
        entries = tables.allocator.entries + 1
        self._tables = tables
        self._unit = tables.entry_tokens
        self._first = np.zeros(entries, dtype=np.int32)
        self._end = np.zeros(entries, dtype=np.int32)
        self._life = np.full(entries, -1, dtype=np.int64)
        self._known: dict[int, _Known] = {}

    def mark(self, row: int, start: int, end: int, *, first: int | None = None) -> None:
        """The row's positions ``start .. end - 1`` are written now, and none behind them.

        With ``first`` the positions before it were passed over and have no cell.
        """
        first = start if first is None else first
        known = self._known.get(row)
        if known is not None:
            if first == start == known.end and known.version == self._tables.mapping(row)[1]:
                known.end = end
            else:
                del self._known[row]
        for entry, low, high, cell in self._parts(row, start, end, first):
            joined = (
                self._life[entry] == self._tables.allocator.lives[entry]
                and self._first[entry] <= low <= self._end[entry]
                and cell == low
            )
            if not joined:
                self._first[entry] = cell
            self._end[entry] = high
            self._life[entry] = self._tables.allocator.lives[entry]

    def restore(self, row: int, start: int, end: int) -> None:
        """Positions ``start .. end - 1`` came back from host memory, but for entries that the
        row shares with others: those have notes of their own."""
        for entry, low, high, _ in self._parts(row, start, end, start):
            if self._life[entry] != self._tables.allocator.lives[entry]:
                self._first[entry], self._end[entry] = low, high
                self._life[entry] = self._tables.allocator.lives[entry]
        self._known.pop(row, None)

    def reaches(self, row: int, position: int) -> bool:
        """Whether this position is the last that was passed in its entry."""
        entry = self._entry(row, position)
        return (
            self._life[entry] == self._tables.allocator.lives[entry]
            and self._end[entry] == position % self._unit + 1
        )

    def run_before(self, row: int, end: int) -> int:
        """The first of the cells that lie without a gap before position ``end``; ``end`` itself
        where there are none."""
        if not end or not self.reaches(row, end - 1):
            return end
        version = self._tables.mapping(row)[1]
        known = self._known.get(row)
        if known is None or known.version != version or known.end != end:
            known = self._known[row] = _Known(version, self._walk_back(row, end), end)
        return known.first

    def run_from_start(self, row: int, limit: int) -> int:
        """Cells that lie without a gap from position 0 on, at most ``limit``."""
        version = self._tables.mapping(row)[1]
        known = self._known.get(row)
        place = 0
        if known is not None and known.version == version and not known.first:
            place = min(known.end, limit) // self._unit
        lives, unit = self._tables.allocator.lives, self._unit
        count = place * unit
        for index, entry in enumerate(self._tables.span(row, place, -(-limit // unit)), place):
            if self._life[entry] != lives[entry] or self._first[entry]:
                count = index * unit
                break
            count = index * unit + int(self._end[entry])
            if self._end[entry] < unit:
                break
        count = min(count, limit)
        self._known[row] = _Known(version, 0, count)
        return count

    def _walk_back(self, row: int, end: int) -> int:
        lives, unit = self._tables.allocator.lives, self._unit
        first = end
        for place in range((end - 1) // unit, -1, -1):
            (entry,) = self._tables.span(row, place, place + 1)
            reached = min(unit, end - place * unit)
            if self._life[entry] != lives[entry] or self._end[entry] < reached:
                break
            first = min(end, place * unit + int(self._first[entry]))
            if self._first[entry]:
                break
        return first

    def _entry(self, row: int, position: int) -> int:
        return int(self._tables.table[row, position // self._unit])

    def _parts(self, row: int, start: int, end: int, first: int) -> list[tuple[int, int, int, int]]:
        """(entry, low, high, first cell) for each entry of the positions, inside the entry."""
        unit = self._unit
        parts = []
        for place in range(start // unit, -(-end // unit)):
            (entry,) = self._tables.span(row, place, place + 1)
            base = place * unit
            low, high = max(start - base, 0), min(end - base, unit)
            parts.append((entry, low, high, min(max(first - base, low), high)))
        return parts
