"""Hands out entry ids."""

from __future__ import annotations

from collections.abc import Iterable


class PoolExhausted(RuntimeError):
    """More entries were asked for than are free: the caller skipped its reservation."""


class EntryAllocator:
    """Ids ``1..entries``; 0 is the null entry and never issued.

    Freed ids are issued again first, so that a lightly used pool touches few pages.
    """

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self._stack = list(range(entries, 0, -1))
        self._held = bytearray(entries + 1)
        self.lives = [0] * (entries + 1)
        """By entry, how often it was taken: what is noted of its contents ends with a life."""

    @property
    def free(self) -> int:
        """Entries that can be taken now."""
        return len(self._stack)

    @property
    def used(self) -> int:
        """Entries that somebody holds."""
        return self.entries - len(self._stack)

    def is_held(self, entry: int) -> bool:
        """Whether somebody holds the entry."""
        return bool(self._held[entry])

    def take(self, count: int) -> list[int]:
        """``count`` ids, or PoolExhausted and nothing is taken."""
        if count > len(self._stack):
            raise PoolExhausted(f"{count} KV entries asked for, {len(self._stack)} free")
        first = len(self._stack) - count
        ids = self._stack[first:]
        del self._stack[first:]
        ids.reverse()
        for entry in ids:
            self._held[entry] = 1
            self.lives[entry] += 1
        return ids

    def give_back(self, ids: Iterable[int]) -> None:
        """Frees ids; one that is not held raises before any state is spoilt by it."""
        for entry in ids:
            if not 0 < entry <= self.entries or not self._held[entry]:
                raise RuntimeError(f"entry {entry} is freed but not held")
            self._held[entry] = 0
            self._stack.append(entry)

    def check_integrity(self, held: Iterable[int]) -> None:
        """Raises unless ``held`` and the free list partition the ids exactly."""
        claimed = list(held)
        everything = sorted(claimed + self._stack)
        if everything != list(range(1, self.entries + 1)):
            raise RuntimeError(
                f"KV entries do not add up: {len(claimed)} held and {len(self._stack)} free "
                f"of {self.entries}"
            )
        if any(not self._held[entry] for entry in claimed):
            raise RuntimeError("a held KV entry is marked free")
