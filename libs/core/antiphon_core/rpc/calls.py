"""The calls that a server works on: counted, awaited and, at the end of the grace, ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class CallTracker:
    """Tasks of the calls in flight. All methods run on the event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended: set[asyncio.Task[object]] = set()
        self.closed = False
        """No new call is admitted."""

    @property
    def count(self) -> int:
        """Calls in flight."""
        return len(self._tasks)

    @contextmanager
    def track(self) -> Iterator[None]:
        """Counts the current task as a call inside the block."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call runs in a task")
        self._tasks.add(task)
        self._idle.clear()
        try:
            yield
        finally:
            self._tasks.discard(task)
            self._ended.discard(task)
            if not self._tasks:
                self._idle.set()

    async def wait_idle(self, timeout: float) -> bool:
        """Waits until no call is in flight; False after ``timeout`` seconds."""
        if self._idle.is_set():
            return True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            return False
        return True

    def end_all(self) -> int:
        """Cancels every call in flight; returns how many."""
        for task in self._tasks:
            self._ended.add(task)
            task.cancel("the server stops")
        return len(self._tasks)

    def take_end(self) -> bool:
        """Whether ``end_all``, not the client, cancelled the current call; consumes the fact."""
        task = asyncio.current_task()
        if task is None or task not in self._ended:
            return False
        self._ended.discard(task)
        task.uncancel()
        return True
