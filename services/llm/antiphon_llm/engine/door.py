"""Whether new work is let in, and what it is told when it is not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

_FAULT_SECONDS = 5.0
"""How long an infrastructure fault keeps the door shut when no step shows that it has healed."""


@dataclass(frozen=True, slots=True)
class Closed:
    """Why the door is shut: an ErrorReason name without prefix, and a sentence."""

    reason: str
    message: str


DRAINING = Closed("DRAINING", "the engine finishes what it has and stops")
ASLEEP = Closed("ASLEEP", "the engine sleeps; wake it first")
MEMORY_PRESSURE = Closed("MEMORY_PRESSURE", "memory ran out; the engine finishes what it has first")
_ORDER = (DRAINING, ASLEEP, MEMORY_PRESSURE)


class Door:
    """Reasons to refuse, independent of each other; the queue's bounds are the scheduler's.

    ``clock`` is monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shut: set[Closed] = set()
        self._fault: Closed | None = None
        self._fault_ends = 0.0

    def shut(self, why: Closed) -> None:
        """Refuses new work until ``open`` of the same reason."""
        self._shut.add(why)

    def open(self, why: Closed) -> None:
        """Takes one reason away."""
        self._shut.discard(why)

    def fault(self, error: BaseException) -> None:
        """Something under the engine failed: shut until a step succeeds, or for a while."""
        self._fault = Closed("NO_BACKEND", f"the engine met a fault: {error}")
        self._fault_ends = self._clock() + _FAULT_SECONDS

    def healed(self) -> None:
        """A step succeeded."""
        self._fault = None

    def closed(self) -> Closed | None:
        """Why new work is refused now; None while it is let in."""
        for why in _ORDER:
            if why in self._shut:
                return why
        if self._fault is not None and self._clock() >= self._fault_ends:
            self._fault = None
        return self._fault
