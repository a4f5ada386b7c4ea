"""When failures of the drafter become a failure of the engine."""

from __future__ import annotations


class DrafterBroken(RuntimeError):
    """The drafter failed so often without a success between that the process must end."""


class Breaker:
    """Counts failures that follow each other; each costs its step the drafts, and no more.

    Shortages of memory have a count of their own: they come and go with the load, and must not
    add up with failures of another kind.

    Args:
        limit: failures of one kind in a row that end the process; -1 never does.

    Attributes:
        total: failures since boot.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._straight = {False: 0, True: 0}
        self.total = 0

    @property
    def degraded(self) -> bool:
        """Whether the last attempt to draft failed."""
        return any(self._straight.values())

    def succeeded(self) -> None:
        """A step was drafted and followed without a failure."""
        self._straight = {False: 0, True: 0}

    def failed(self, error: Exception, *, memory: bool) -> None:
        """Counts a failure; ``memory`` is a shortage of it. Raises DrafterBroken at the limit."""
        self.total += 1
        self._straight[memory] += 1
        if self._straight[memory] == self._limit:
            raise DrafterBroken(
                f"the drafter failed {self._limit} times in a row: {error}"
            ) from error
