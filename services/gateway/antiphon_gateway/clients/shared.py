"""Many streams over one call of one backend: the call, and what every stream on it has.

The call is always read, so that a slow reader holds nobody else back: what it has not taken waits
in its own inbox. Messages that wait to be sent leave together.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Container, Iterator
from typing import Any, Generic, TypeVar

import grpc.aio
from antiphon_core.errors import (
    AntiphonError,
    Cancelled,
    DeadlineExceeded,
    Internal,
    Unavailable,
)
from antiphon_core.logs import get_logger
from antiphon_core.rpc.outcome import failure_of

from antiphon_gateway.clients.stream import CancelledByLeaving, once_begun, refused_unstarted

Event = TypeVar("Event")
Stream = TypeVar("Stream", bound="SharedStream[Any]")

log = get_logger(__name__)

_DEALT_AT_ONCE = 8
"""Streams whose readers are woken before everything else gets its turn: a step of 64 rows is
several milliseconds of work, and a new request waited for all of it at each of its own steps."""


class SharedStream(CancelledByLeaving[Event]):
    """One stream of a shared call: its events, in order, until its terminal or its error.

    Args:
        call: that it runs on.
        timeout: seconds until it ends with DeadlineExceeded; None for never.
    """

    kind = "stream"
    """What messages call it."""

    def __init__(self, call: SharedCall[Any], timeout: float | None) -> None:
        self._call = call
        self._inbox: deque[Event] = deque()
        self._failure: AntiphonError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_accepted = False
        """Whether the service has answered."""
        self.is_over = False
        """Whether nothing more comes from the service; the inbox may still hold events."""
        self._loop = asyncio.get_running_loop()
        self._timer = (
            None if timeout is None else self._loop.call_later(timeout, self._expire, timeout)
        )
        self.id = call.add(self)

    async def __anext__(self) -> Event:
        """The next event.

        Raises:
            AntiphonError: the stream failed, after everything that came before was given.
        """
        while not self._inbox:
            if self._failure is not None:
                raise self._failure
            if self.is_over:
                raise StopAsyncIteration
            self._waiter = self._loop.create_future()
            await self._waiter
        event = self._inbox.popleft()
        self._taken(event)
        return event

    def cancel(self) -> None:
        """Ends the stream at the service; harmless when it is over."""
        self.abandon(Cancelled("the call was cancelled"))

    def abandon(self, error: AntiphonError) -> None:
        """Ends the stream here and at the service, unless it is over."""
        if not self.is_over:
            self._call.cancel(self.id)
            self.fail(error)

    def fail(self, error: AntiphonError) -> None:
        """Ends the stream with an error behind what has come."""
        self._failure = error
        self._end()
        self._wake()

    def lose(self, error: AntiphonError, *, was_sent: bool) -> None:
        """The call is over: an accepted stream should have had its terminal before.

        Args:
            error: why it is over.
            was_sent: whether the service may have got the stream's beginning.
        """
        if isinstance(error, EndedInOrder):
            if self._is_accepted:
                error = Internal("the backend ended the stream without its terminal message")
            else:
                error = Unavailable(
                    f"the {self._call.service} service is draining", reason="DRAINING"
                )
        elif was_sent:
            error = once_begun(error)
        self.fail(error)

    @abstractmethod
    def _taken(self, event: Event) -> None:
        """The reader has taken an event."""

    def _put(self, event: Event) -> None:
        self._inbox.append(event)
        self._wake()

    def _expire(self, timeout: float) -> None:
        self.abandon(DeadlineExceeded(f"the {self.kind} did not end within {timeout:g} s"))

    def _end(self) -> None:
        self.is_over = True
        self._call.remove(self.id)
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EndedInOrder(Unavailable):
    """The service closed the call with status OK, as it does when it drains."""


class SharedCall(ABC, Generic[Stream]):
    """One open call: a task reads it, another writes to it.

    Args:
        open_call: begins the call.
        service: its name in messages.
    """

    def __init__(self, open_call: Callable[[], Any], service: str) -> None:
        # Outside of the request that happens to be the first: the call has no tenant, trace
        # or deadline of its own, each stream carries its request's.
        blank = contextvars.Context()
        self._call = blank.run(open_call)
        self.service = service
        self._numbers = itertools.count(1)
        self._streams: dict[str, Stream] = {}
        self._has_outgoing = asyncio.Event()
        self.is_over = False
        self._tasks = [
            asyncio.create_task(self._read(), context=blank, name=f"shared-{service}-read"),
            asyncio.create_task(self._write(), context=blank, name=f"shared-{service}-write"),
        ]

    @abstractmethod
    def cancel(self, stream_id: str) -> None:
        """Tells the service that nobody waits for the id any longer."""

    @abstractmethod
    def _deal(self, message: Any) -> Iterator[None]:
        """Hands what a message says to its streams; yields after each that it gave something."""

    @abstractmethod
    def _next_message(self) -> Any:
        """What is to be sent now, all that has gathered; None for nothing."""

    @abstractmethod
    def _unsent(self) -> Container[str]:
        """Ids of the streams whose beginning has not been sent."""

    def add(self, stream: Stream) -> str:
        """Registers a stream under a new id."""
        stream_id = str(next(self._numbers))
        self._streams[stream_id] = stream
        return stream_id

    def remove(self, stream_id: str) -> None:
        """Nothing more is delivered for the id."""
        self._streams.pop(stream_id, None)

    def close(self) -> None:
        """Ends the call."""
        self._call.cancel()

    async def _read(self) -> None:
        error: AntiphonError = Internal("the stream's messages could not be read")
        was_opened = True
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                for count, _ in enumerate(self._deal(message), 1):
                    if count % _DEALT_AT_ONCE == 0:
                        await asyncio.sleep(0)
            error = await failure_of(self._call)
            if await self._call.code() is grpc.StatusCode.OK:
                error = EndedInOrder(error.message)
        except grpc.aio.AioRpcError:
            error = await failure_of(self._call)
            was_opened = not await refused_unstarted(self._call)
            log.warning(
                "shared_call_lost",
                service=self.service,
                reason=error.reason,
                message=error.message[:300],
            )
        except asyncio.CancelledError:
            error = Cancelled(f"the connection to the {self.service} service was closed")
        except Exception:
            log.exception("shared_call_unreadable", service=self.service)
        finally:
            self._finish(error, was_opened=was_opened)

    async def _write(self) -> None:
        try:
            while True:
                await self._has_outgoing.wait()
                self._has_outgoing.clear()
                while (message := self._next_message()) is not None:
                    await self._call.write(message)
        except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
            pass  # The call is over; its reader learns why.

    def _finish(self, error: AntiphonError, *, was_opened: bool) -> None:
        self.is_over = True
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._call.cancel()
        unsent = self._unsent()
        for stream_id, stream in list(self._streams.items()):
            stream.lose(error, was_sent=was_opened and stream_id not in unsent)
