"""Which entries hold the tokens of each running row: the one owner of slot arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .allocator import EntryAllocator


class UnbackedToken(RuntimeError):
    """A token of a step has no place of its own: its row is not open, or holds too few entries.

    Written regardless it would land on the null entry, or in another request's keys.
    """


class BlockTables:
    """A table row per running request, in host memory.

    ``table`` is int32 ``(rows, width)``; unused places hold the null entry 0. A place of the
    KV pool (*slot*) is ``table[row, position // entry_tokens] * entry_tokens + position %
    entry_tokens``.
    """

    def __init__(
        self, allocator: EntryAllocator, *, rows: int, entry_tokens: int, context_limit: int
    ) -> None:
        self.allocator = allocator
        self.entry_tokens = entry_tokens
        self.context_limit = context_limit
        self.width = -(-context_limit // entry_tokens)
        self.table = np.zeros((rows, self.width), dtype=np.int32)
        self._held: list[list[int]] = [[] for _ in range(rows)]
        self._free_rows = list(range(rows - 1, -1, -1))
        self._versions = [0] * rows
        self._next_version = 1

    @property
    def free_rows(self) -> int:
        """Rows that ``open`` can still give."""
        return len(self._free_rows)

    def open(self) -> int:
        """An empty row."""
        row = self._free_rows.pop()
        self._new_lineage(row)
        return row

    def close(self, row: int) -> None:
        """Gives the row and its entries back."""
        self.allocator.give_back(self.detach(row))

    def detach(self, row: int) -> list[int]:
        """Gives the row back and hands its entries, in order, over to the caller."""
        held = self._held[row]
        self.table[row, : len(held)] = 0
        self._held[row] = []
        self._free_rows.append(row)
        return held

    def entries_for(self, length: int) -> int:
        """Entries that ``length`` written tokens occupy."""
        return -(-length // self.entry_tokens)

    def held(self, row: int) -> int:
        """Entries that the row holds."""
        return len(self._held[row])

    def need(self, row: int, length: int) -> int:
        """Entries that ``extend`` would take to make room for ``length`` written tokens."""
        return max(0, self.entries_for(length) - len(self._held[row]))

    def extend(self, row: int, length: int) -> None:
        """Makes room for ``length`` written tokens."""
        count = self.need(row, length)
        if not count:
            return
        held = self._held[row]
        taken = self.allocator.take(count)
        self.table[row, len(held) : len(held) + count] = taken
        held.extend(taken)

    def adopt(self, row: int, entries: Sequence[int]) -> None:
        """Appends entries that the caller holds already."""
        held = self._held[row]
        if len(entries) == 1:
            self.table[row, len(held)] = entries[0]
        else:
            self.table[row, len(held) : len(held) + len(entries)] = entries
        held.extend(entries)

    def trim(self, row: int, length: int) -> list[int]:
        """Hands the entries behind ``length`` written tokens over to the caller; an edit, and so
        a new lineage, unless there are none."""
        held, kept = self._held[row], self.entries_for(length)
        cut = held[kept:]
        if cut:
            self.table[row, kept : len(held)] = 0
            del held[kept:]
            self._new_lineage(row)
        return cut

    def span(self, row: int, first: int, end: int) -> list[int]:
        """The row's entries ``first .. end - 1``."""
        return self._held[row][first:end]

    def replace(self, row: int, first: int, entries: list[int]) -> None:
        """Puts equal contents in other entries, from the row's ``first`` on; an edit, and so
        a new lineage, unless nothing changes."""
        end = first + len(entries)
        if self._held[row][first:end] != entries:
            self._held[row][first:end] = entries
            self.table[row, first:end] = entries
            self._new_lineage(row)

    def mapping(self, row: int) -> tuple[int, int, int]:
        """Identifies the row's contents by row, lineage version and entry count: appends change
        the last, a new owner or an edit the second."""
        return row, self._versions[row], len(self._held[row])

    def write_slots(self, row: int, start: int, count: int, out: np.ndarray) -> None:
        """Places of positions ``start .. start + count - 1`` into ``out``, int64 ``(count,)``.

        Raises UnbackedToken, and writes nothing, where the row does not hold all of them.
        """
        if row < 0 or start + count > len(self._held[row]) * self.entry_tokens:
            raise UnbackedToken(
                f"table row {row} holds {len(self._held[row]) if row >= 0 else 0} entries of "
                f"{self.entry_tokens} tokens, the step writes up to position {start + count - 1}"
            )
        if count == 1:
            entry, offset = divmod(start, self.entry_tokens)
            out[0] = int(self.table[row, entry]) * self.entry_tokens + offset
            return
        positions = np.arange(start, start + count, dtype=np.int64)
        entry = self.table[row].take(positions // self.entry_tokens).astype(np.int64)
        np.add(entry * self.entry_tokens, positions % self.entry_tokens, out=out)

    def slots_at(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Places, int64 (n), of one position (n) of each row (n).

        Raises UnbackedToken where a row does not hold its position.
        """
        place, offset = np.divmod(positions, self.entry_tokens)
        entries = self.table[rows, place].astype(np.int64)
        # Places that a row does not hold are null, and a request without a row has row -1.
        if not entries.all() or (rows < 0).any():
            raise UnbackedToken(
                f"a decode row has no entry for its token: table rows {rows.tolist()}, "
                f"positions {positions.tolist()}, entries {entries.tolist()}"
            )
        return entries * self.entry_tokens + offset

    def check_integrity(self) -> None:
        """Raises unless rows and table agree with each other."""
        for row, held in enumerate(self._held):
            if self.table[row, : len(held)].tolist() != held or self.table[row, len(held) :].any():
                raise RuntimeError(f"block table row {row} differs from the entries it holds")
        if any(self._held[row] for row in self._free_rows):
            raise RuntimeError("a free block table row holds entries")

    def _new_lineage(self, row: int) -> None:
        self._versions[row] = self._next_version
        self._next_version += 1
