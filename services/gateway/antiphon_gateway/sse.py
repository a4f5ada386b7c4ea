"""Server-sent events over bare ASGI: frames, pings, slow readers and reading ahead of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from antiphon_core.errors import DeadlineExceeded

from antiphon_gateway.config import Limits
from antiphon_gateway.http import Headers, Send

Event = TypeVar("Event")

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
READ_AHEAD_BYTES = 64 * 1024

_BLOCKED_SECONDS = 0.25
"""Longer than a busy machine keeps this process from running."""
_HEADERS: list[tuple[bytes, bytes]] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class StreamWriter:
    """Writes a streamed body; each write waits until the former one has drained.

    One timer watches a whole stream, because a timer per write would cost as much as the write.

    Args:
        send: the ASGI send.
        limits: how long a reader may stall, and how long a stream may be silent.
    """

    def __init__(self, send: Send, limits: Limits) -> None:
        self._send = send
        self._stalled_after = limits.stalled_reader_seconds
        self._ping_after = limits.ping_seconds
        self._loop = asyncio.get_running_loop()
        self._last_write = self._loop.time()
        self._waiting_since = 0.0
        self._waiting_writes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ping_task: asyncio.Task[None] | None = None
        self._owner: asyncio.Task[object] | None = None
        self._is_stalled = False
        self.is_started = False
        self.was_blocked = False
        """Whether a write has waited for the reader."""

    async def start(self, headers: Headers = (), content: Headers = _HEADERS) -> None:
        """Commits status 200.

        Args:
            headers: further headers.
            content: the headers that say what the body is; an event stream's by default.
        """
        self.is_started = True
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": [*content, *headers]}
        )

    async def write(self, data: bytes) -> None:
        """Writes a piece of the body; nothing for an empty one."""
        if not data:
            return
        started = self._loop.time()
        if not self._waiting_writes:
            self._waiting_since = started
        self._waiting_writes += 1
        try:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            self._waiting_writes -= 1
        self._last_write = self._loop.time()
        if self._last_write - started > _BLOCKED_SECONDS:
            self.was_blocked = True

    async def end(self) -> None:
        """Ends the response."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    @asynccontextmanager
    async def watched(self, *, pings: bool = True) -> AsyncIterator[None]:
        """Fills silence with comments, and ends the block when the reader takes nothing.

        Raises:
            DeadlineExceeded: INPUT_IDLE, in place of the cancellation of the block.
        """
        owner = self._owner = asyncio.current_task()
        assert owner is not None
        if not pings:
            self._ping_after = float("inf")
        self._watch()
        try:
            yield
        except asyncio.CancelledError:
            if self._is_stalled and owner.uncancel() == 0:
                raise DeadlineExceeded(
                    f"the reader took nothing for {self._stalled_after:g} s", reason="INPUT_IDLE"
                ) from None
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self._ping_task is not None:
                self._ping_task.cancel()

    def _watch(self) -> None:
        """Does what is due and sets the timer for what is due next."""
        now = self._loop.time()
        if self._waiting_writes:
            due = self._waiting_since + self._stalled_after
            if now >= due:
                self._is_stalled = True
                assert self._owner is not None
                self._owner.cancel()
                return
        else:
            due = self._last_write + self._ping_after
            if now >= due and self.is_started:
                self._ping_task = self._loop.create_task(self.write(PING))
            if now >= due:
                due = now + self._ping_after
        self._timer = self._loop.call_at(min(due, now + self._stalled_after / 2), self._watch)


class ReadAhead(Generic[Event]):
    """Reads a stream while its consumer is busy, up to a bound, and hands over all that came.

    Args:
        source: the events.
        size: bytes that an event counts for.
        merge: adds an event to the one before it if it can; True when it did.
    """

    def __init__(
        self,
        source: AsyncIterator[Event],
        size: Callable[[Event], int],
        merge: Callable[[Event, Event], bool],
    ) -> None:
        self._source = source
        self._size = size
        self._merge = merge
        self._pending: list[Event] = []
        self._bytes = 0
        self._wanted = asyncio.Event()
        self._room = asyncio.Event()
        self._failure: Exception | None = None
        self._is_over = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ReadAhead[Event]]:
        """Reads while the block runs."""
        task = asyncio.create_task(self._read())
        try:
            yield self
        finally:
            task.cancel()

    async def next_batch(self) -> list[Event] | None:
        """All events that have come since the last batch; None at the end.

        Raises:
            AntiphonError: the source failed, after everything that came before has been given.
        """
        if not self._pending and not self._is_over:
            await self._wanted.wait()
        self._wanted.clear()
        batch, self._pending, self._bytes = self._pending, [], 0
        self._room.set()
        if batch:
            return batch
        if self._failure is not None:
            raise self._failure
        return None

    async def _read(self) -> None:
        try:
            async for event in self._source:
                self._bytes += self._size(event)
                if not (self._pending and self._merge(self._pending[-1], event)):
                    self._pending.append(event)
                self._wanted.set()
                if self._bytes >= READ_AHEAD_BYTES:
                    self._room.clear()
                    await self._room.wait()
        except Exception as error:  # raised again by next_batch
            self._failure = error
        self._is_over = True
        self._wanted.set()
