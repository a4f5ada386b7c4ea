"""Batch requests that give way keep their keys and values in host memory.

A parked request waits in its queue like a preempted one, but goes on in fresh entries where it
stopped instead of computing its context again. Where the prefix cache still has the context's
beginning, only the rest is copied back. Who finds no room in host memory is preempted without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .holdings import Holdings
from .request import Request


class KvMover(Protocol):
    """Copies entries to host memory and back.

    Calls come between steps, in order with their launches; a step in flight neither reads nor
    writes the entries of a ``resume``, nor writes those of a ``park``.
    """

    @property
    def room(self) -> int:
        """Entries that can still be parked."""
        ...

    def park(self, entries: Sequence[int]) -> int:
        """Copies entries, at most ``room``; the pool may reuse them for the next step.

        Returns:
            A handle, for one ``resume`` or ``drop``.
        """
        ...

    def resume(self, handle: int, first: int, entries: Sequence[int]) -> None:
        """Copies parked entries back, from number ``first`` on; the next step may read them."""
        ...

    def drop(self, handle: int) -> None:
        """Forgets parked entries."""
        ...


class Parking:
    """Which requests are parked, and with how much of their context.

    Attributes:
        count: requests parked now.
        parked_total: requests parked since boot.
    """

    def __init__(self, holdings: Holdings, mover: KvMover | None) -> None:
        self._holdings = holdings
        self._mover = mover
        self.count = 0
        self.parked_total = 0

    def park(self, request: Request) -> bool:
        """Copies what settled steps wrote for a running batch request; False if it is not worth
        parking or finds no room. A pooled request's running sum cannot be parked."""
        length = min(request.settled, len(request.tokens) - 1)
        if self._mover is None or request.interactive or request.pooled is not None or not length:
            return False
        tables = self._holdings.tables
        count = tables.entries_for(length)
        if count > self._mover.room:
            return False
        request.parked = self._mover.park(tables.span(request.row, 0, count))
        request.parked_length = length
        self.count += 1
        self.parked_total += 1
        return True

    def resume(self, request: Request) -> None:
        """Brings back what a parked request, just opened, does not find in the prefix cache."""
        assert self._mover is not None and request.parked is not None
        length, first = request.parked_length, request.written // self._holdings.tables.entry_tokens
        if length <= request.written:
            self.drop(request)
            return
        self._holdings.extend(request, length)
        held = self._holdings.tables.held(request.row)
        entries = self._holdings.tables.span(request.row, first, held)
        self._mover.resume(request.parked, first, entries)
        request.written = request.settled = length
        self._forget(request)

    def drop(self, request: Request) -> None:
        """Forgets what is parked of a request, if anything."""
        if request.parked is not None:
            assert self._mover is not None
            self._mover.drop(request.parked)
            self._forget(request)

    def _forget(self, request: Request) -> None:
        request.parked = None
        request.parked_length = 0
        self.count -= 1
