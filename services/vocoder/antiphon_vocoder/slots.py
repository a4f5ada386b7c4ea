"""Slots of the service: how many streams speak at once, who waits, who is refused."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from antiphon_core.errors import ResourceExhausted

_RETRY_LIMITS = (0.5, 30.0)
_FIRST_HOLD_GUESS = 4.0
_HOLD_SMOOTHING = 0.2


@dataclass(eq=False)
class Lease:
    """A slot in use by one stream. ``release`` may be called any number of times."""

    slot: int
    generation: int
    waited: float
    """Seconds in the queue."""
    _release: Callable[[Lease], None] = field(repr=False)
    taken_at: float = 0.0
    released: bool = False

    def release(self) -> None:
        """Gives the slot to the next in the queue, or back."""
        if not self.released:
            self.released = True
            self._release(self)


class SlotPool:
    """First come, first served; used on one event loop.

    Args:
        total: slots, at least 1.
        queue_limit: waiting streams beyond which new ones are refused.
        clock: seconds, monotonic.
    """

    def __init__(
        self, total: int, queue_limit: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total = total
        self.queue_limit = queue_limit
        self._clock = clock
        self._free = list(range(total - 1, -1, -1))
        self._waiting: deque[asyncio.Future[int]] = deque()
        self._generations = [0] * total
        self._hold = _FIRST_HOLD_GUESS

    @property
    def busy(self) -> int:
        """Slots in use."""
        return self.total - len(self._free)

    @property
    def utilization(self) -> float:
        """Busy slots and waiting streams over all slots, at most 1."""
        return min((self.busy + self.queued) / self.total, 1.0)

    @property
    def queued(self) -> int:
        """Streams that wait."""
        return len(self._waiting)

    async def acquire(self) -> Lease:
        """Takes a slot, after waiting for one if need be; a cancelled wait leaves the queue.

        Raises:
            ResourceExhausted: QUEUE_FULL with the time after which a retry may fit.
        """
        started = self._clock()
        if self._free and not self._waiting:
            return self._lease(self._free.pop(), 0.0)
        if self.queued >= self.queue_limit:
            raise ResourceExhausted(
                f"all {self.total} speech slots are taken and {self.queued} streams wait",
                reason="QUEUE_FULL",
                metadata={"limit": str(self.queue_limit), "observed": str(self.queued)},
                retry_after=self._retry_after(),
            )
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            slot = await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on(turn.result())
            else:
                self._waiting.remove(turn)
            raise
        return self._lease(slot, self._clock() - started)

    def shrink(self, total: int) -> None:
        """Gives up slots from ``total`` on: now if they are free, else when they are given back."""
        if total < self.total:
            self.total = total
            self._free = [slot for slot in self._free if slot < total]

    def _lease(self, slot: int, waited: float) -> Lease:
        self._generations[slot] += 1
        return Lease(slot, self._generations[slot], waited, self._give_back, self._clock())

    def _give_back(self, lease: Lease) -> None:
        held = self._clock() - lease.taken_at
        self._hold += _HOLD_SMOOTHING * (held - self._hold)
        self._pass_on(lease.slot)

    def _pass_on(self, slot: int) -> None:
        if slot >= self.total:
            return
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(slot)
                return
        self._free.append(slot)

    def _retry_after(self) -> float:
        low, high = _RETRY_LIMITS
        return round(min(max(self._hold * (self.queued + 1) / self.total, low), high), 1)
