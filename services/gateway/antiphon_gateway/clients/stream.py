"""One helper for every outgoing stream: whatever happens, leaving it cancels the call.

A grpc.aio client that merely stops iterating does not tell the server, so streams are used as
context managers and ``__aexit__`` cancels.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import grpc.aio
from antiphon_core.errors import AntiphonError, Internal, Unavailable
from antiphon_core.rpc.interceptors import NOT_STARTED
from antiphon_core.rpc.outcome import StreamCall, failure_of
from antiphon_core.rpc.streams import end_writes, typed_errors, write

Event = TypeVar("Event")
EventOut = TypeVar("EventOut", covariant=True)

_NOT_BEGUN = ("NO_BACKEND", "DRAINING")
_NEVER_CONNECTED = "failed to connect to all addresses"
"""How gRPC's core begins the details of a call for which there was no connection."""


def once_begun(error: AntiphonError) -> AntiphonError:
    """What a lost backend means for a request that it had begun.

    A failure below the application, and the end of a drain, look like a refusal; but then the
    edge would send the request to another replica as one that nobody has worked on.
    """
    if error.reason not in _NOT_BEGUN:
        return error
    return Unavailable(f"the backend was lost: {error.message}", reason="WORKER_DIED")


async def refused_unstarted(call: StreamCall) -> bool:
    """Whether a failed call can have begun nothing: service or proxy say so, or nobody was there.

    A connection that breaks under a call proves nothing: the service may be at work on it.
    """
    for key, _ in await call.trailing_metadata() or ():
        if key == NOT_STARTED:
            return True
    return (await call.details() or "").startswith(_NEVER_CONNECTED)


class EventStream(Protocol[EventOut]):
    """Events of a backend, for the block of an ``async with``."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def __aiter__(self) -> AsyncIterator[EventOut]: ...

    async def __anext__(self) -> EventOut: ...


class CancelledByLeaving(ABC, Generic[Event]):
    """An EventStream whose ``cancel`` is called at the end of the block, or on the way into it."""

    async def __aenter__(self) -> Self:
        try:
            await self._enter()
        except BaseException:
            # A block that was not entered is not left either.
            self.cancel()
            raise
        return self

    async def _enter(self) -> None:
        """What a stream does first; nothing by default."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    @abstractmethod
    async def __anext__(self) -> Event: ...

    @abstractmethod
    def cancel(self) -> None: ...


class BackendStream(CancelledByLeaving[Event]):
    """A server's answers as domain events.

    Use as ``async with client.stream(...) as stream: async for event in stream``. Iteration
    raises the backend's typed AntiphonError, and Internal when the call ends without its
    terminal event. ``cancel`` may be called at any time, from any task of the loop.
    """

    def __init__(
        self,
        call: Any,
        convert: Callable[[Any], Event | None],
        terminal: type,
    ) -> None:
        self._call = call
        self._convert = convert
        self._terminal = terminal
        self._begun = False
        self._ended = False

    def cancel(self) -> None:
        """Ends the call at the server; harmless when it is over."""
        self._call.cancel()

    async def __anext__(self) -> Event:
        while True:
            if self._ended:
                raise StopAsyncIteration
            try:
                message = await self._call.read()
            except grpc.aio.AioRpcError:
                failure = await failure_of(self._call)
                unstarted = not self._begun and await refused_unstarted(self._call)
                raise (failure if unstarted else once_begun(failure)) from None
            except asyncio.CancelledError:
                # Entered on failure only: around each read it would cost as much as the rest.
                with typed_errors(self._call):
                    raise
            if message is grpc.aio.EOF:
                raise Internal("the backend ended the stream without its terminal message")
            self._begun = True
            event = self._convert(message)
            if event is None:
                continue
            if isinstance(event, self._terminal):
                self._ended = True
            return event


class TwoWayStream(BackendStream[Event]):
    """A stream that is also written to; writing waits while the server does not read."""

    async def _write(self, message: Any) -> None:
        await write(self._call, message)

    async def end_input(self) -> None:
        """Half-closes: no more input follows."""
        await end_writes(self._call)
