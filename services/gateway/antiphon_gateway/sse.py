"""Server-sent events over bare ASGI: reading ahead, merging, pings and slow readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from antiphon_core.errors import DeadlineExceeded

from antiphon_gateway.http import Headers, Send

Event = TypeVar("Event")

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
READ_AHEAD_BYTES = 64 * 1024

_HEADERS: list[tuple[bytes, bytes]] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class EventWriter:
    """Writes frames; each write waits until the former one has drained.

    Args:
        send: the ASGI send.
        stalled_seconds: a write that waits longer than this fails the stream.
    """

    def __init__(self, send: Send, stalled_seconds: float) -> None:
        self._send = send
        self._stalled_seconds = stalled_seconds
        self.is_started = False

    async def start(self, headers: Headers = ()) -> None:
        """Commits status 200."""
        self.is_started = True
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *headers]}
        )

    async def write(self, frames: bytes) -> None:
        """Writes whole frames; nothing for an empty argument.

        Raises:
            DeadlineExceeded: INPUT_IDLE, the reader takes nothing.
        """
        if not frames:
            return
        try:
            async with asyncio.timeout(self._stalled_seconds):
                await self._send(
                    {"type": "http.response.body", "body": frames, "more_body": True}
                )
        except TimeoutError:
            raise DeadlineExceeded(
                f"the reader took nothing for {self._stalled_seconds:g} s", reason="INPUT_IDLE"
            ) from None

    async def end(self) -> None:
        """Ends the response."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


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
        self._room.set()
        self._failure: BaseException | None = None
        self._ended = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ReadAhead[Event]]:
        """Reads while the block runs."""
        task = asyncio.create_task(self._read())
        try:
            yield self
        finally:
            task.cancel()

    async def next_batch(self, ping_seconds: float) -> list[Event] | None:
        """All events that have come since the last batch.

        Returns:
            An empty list after ``ping_seconds`` of silence; None at the end.

        Raises:
            AntiphonError: the source failed, after everything that came before has been given.
        """
        if not self._pending and not self._ended:
            ping = asyncio.get_running_loop().call_later(ping_seconds, self._wanted.set)
            try:
                await self._wanted.wait()
            finally:
                ping.cancel()
        self._wanted.clear()
        batch, self._pending, self._bytes = self._pending, [], 0
        self._room.set()
        if batch or not self._ended:
            return batch
        if self._failure is not None:
            raise self._failure
        return None

    async def _read(self) -> None:
        try:
            async for event in self._source:
                self._append(event)
                self._wanted.set()
                if self._bytes >= READ_AHEAD_BYTES:
                    self._room.clear()
                    await self._room.wait()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._failure = error
        self._ended = True
        self._wanted.set()

    def _append(self, event: Event) -> None:
        self._bytes += self._size(event)
        if not (self._pending and self._merge(self._pending[-1], event)):
            self._pending.append(event)
