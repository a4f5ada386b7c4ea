"""The ladder down when memory runs out, and back up. No step of it waits for a clock.

First the work of a step shrinks: each shortage halves the prefill chunk and the rows that run
together, or halves them as often as it takes to get below what the memory, measured anew, can
hold; down to one row and one entry of tokens. If that much does not fit either, the door
closes: what runs ends, and it opens again when nothing is left. A shortage behind the closed
door, with no step done since it closed, is the end of the process.
"""

from __future__ import annotations

from collections.abc import Callable

from antiphon_core.logs import get_logger

from .door import MEMORY_PRESSURE, Door
from .failures import MemoryExhausted
from .scheduler import Scheduler

_log = get_logger(__name__)

_STEPS_TO_WIDEN = 64
"""Steps that must succeed in a row before the work of a step doubles again."""


class MemoryPressure:
    """Narrows the scheduler's limits and shuts the door.

    Args:
        affordable: measures for how many tokens in one step there is memory now; None where a
            step's memory does not grow with its tokens.

    Attributes:
        shortages: times that a step found no memory.
        denials: times that a pool's own bound refused, by the pool's name.
        level: halvings in force.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        door: Door,
        affordable: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._affordable = affordable
        self._scheduler = scheduler
        self._door = door
        self._full = scheduler.limits
        self._succeeded = 0
        self.shortages = 0
        self.denials: dict[str, int] = {}
        self.level = 0

    @property
    def closed(self) -> bool:
        """Whether the door is shut until everything has ended."""
        return self._door.closed() is MEMORY_PRESSURE

    def denied(self, pool: str) -> None:
        """A pool's own bound refused; the machine may have memory enough."""
        self.denials[pool] = self.denials.get(pool, 0) + 1
        _log.warning("pool_denied", pool=pool, times=self.denials[pool])

    def shortage(self) -> bool:
        """A step found no memory; whether its rows may be tried again, narrower.

        Raises:
            MemoryExhausted: there is nothing left to give up.
        """
        self.shortages += 1
        if self.closed:
            if not self._succeeded:
                raise MemoryExhausted("out of memory with the door closed and no step done since")
            self._succeeded = 0
            return False
        self._succeeded = 0
        affordable = self._affordable()
        if self._narrow(self._next_level(affordable)):
            _log.warning(
                "memory_pressure",
                level=self.level,
                affordable_tokens=affordable,
                **self._widths(),
            )
            return True
        self._door.shut(MEMORY_PRESSURE)
        _log.error("memory_pressure_door_shut", shortages=self.shortages)
        return False

    def success(self) -> None:
        """A step was done."""
        self._succeeded += 1
        if self.level and self._succeeded >= _STEPS_TO_WIDEN and not self.closed:
            self._succeeded = 0
            self._narrow(self.level - 1)

    def idle(self) -> None:
        """Nothing is live: full width again, and the door opens."""
        if self.level or self.closed:
            self._narrow(0)
            self._door.open(MEMORY_PRESSURE)
            _log.info("memory_pressure_over", shortages=self.shortages)

    def _next_level(self, affordable: int | None) -> int:
        """The next level whose widest step there is memory for, or the narrowest."""
        level = self.level + 1
        if affordable is not None:
            while (
                min(self._chunk(level) * self._rows(level), self._full.step_tokens) > affordable
                and self._chunk(level) * self._rows(level) > self._full.entry_tokens
            ):
                level += 1
        return level

    def _chunk(self, level: int) -> int:
        return max(self._full.entry_tokens, self._full.prefill_chunk >> level)

    def _rows(self, level: int) -> int:
        return max(1, self._full.max_rows >> level)

    def _narrow(self, level: int) -> bool:
        """Puts a level in force; False if it would be no narrower than the one before."""
        before = self._widths()
        self._scheduler.narrow(prefill_chunk=self._chunk(level), rows=self._rows(level))
        if level > self.level and self._widths() == before:
            return False
        self.level = level
        return True

    def _widths(self) -> dict[str, int]:
        return {"prefill_chunk": self._scheduler.chunk, "rows": self._scheduler.row_limit}
