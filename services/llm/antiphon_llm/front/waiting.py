"""Sequences that were submitted and have no row yet, by class."""

from __future__ import annotations


class Waiting:
    """Names of waiting sequences; each call is O(1)."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[bool, set[str]] = {True: set(), False: set()}

    @property
    def interactive(self) -> int:
        """Interactive sequences that wait."""
        return len(self._names[True])

    @property
    def batch(self) -> int:
        """Batch sequences that wait."""
        return len(self._names[False])

    def before(self, *, interactive: bool) -> int:
        """How many a new sequence of this class would wait behind: batch work never delays
        interactive work."""
        return self.interactive if interactive else self.interactive + self.batch

    def add(self, name: str, *, interactive: bool) -> None:
        """A sequence was submitted."""
        self._names[interactive].add(name)

    def discard(self, name: str) -> None:
        """A sequence got its row or ended; unknown names are ignored."""
        self._names[True].discard(name)
        self._names[False].discard(name)

    def clear(self) -> None:
        """All of them ended."""
        self._names[True].clear()
        self._names[False].clear()
