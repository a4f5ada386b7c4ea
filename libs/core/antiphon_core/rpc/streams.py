"""Client-side helpers for calls: always cancelled, errors typed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol, TypeVar

import grpc

from antiphon_core.errors import Cancelled, Internal
from antiphon_core.rpc.errors import from_rpc_error
from antiphon_core.rpc.outcome import StreamCall, failure_of

Message = TypeVar("Message")
MessageCovariant = TypeVar("MessageCovariant", covariant=True)
MessageContravariant = TypeVar("MessageContravariant", contravariant=True)


class Cancellable(Protocol):
    """Any grpc.aio call."""

    def cancel(self) -> bool:
        """Ends the call; the server's handler sees CancelledError."""
        ...


class ResponseStream(StreamCall, Protocol[MessageCovariant]):
    """A call whose responses are a stream."""

    def __aiter__(self) -> AsyncIterator[MessageCovariant]: ...


class RequestStream(StreamCall, Protocol[MessageContravariant]):
    """A call whose requests are a stream."""

    async def write(self, request: MessageContravariant) -> None: ...
    async def done_writing(self) -> None: ...


CallType = TypeVar("CallType", bound=Cancellable)


@asynccontextmanager
async def open_stream(call: CallType) -> AsyncIterator[CallType]:
    """Holds a call for the block and cancels it on every way out.

    A client that merely leaves ``async for`` does not tell a grpc.aio server. Cancelling a
    finished call does nothing.

    Raises:
        AntiphonError: in place of an AioRpcError raised in the block.
    """
    try:
        with typed_errors(call):
            yield call
    finally:
        call.cancel()


async def messages(call: ResponseStream[Message]) -> AsyncIterator[Message]:
    """The responses of a call; use inside ``open_stream``.

    Raises:
        AntiphonError: the call failed.
    """
    try:
        with typed_errors(call):
            async for message in call:
                yield message
    except Internal:
        raise await failure_of(call) from None


async def write(call: RequestStream[MessageContravariant], message: MessageContravariant) -> None:
    """Sends one message of a client's stream; waits while flow control asks for it.

    Raises:
        AntiphonError: the call failed. Unavailable when the peer has ended it in order.
    """
    await _send(call, call.write(message))


async def end_writes(call: RequestStream[Any]) -> None:
    """Half-closes: no more messages follow. Raises as :func:`write`."""
    await _send(call, call.done_writing())


async def _send(call: RequestStream[Any], sending: Awaitable[None]) -> None:
    try:
        try:
            await sending
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            # Entered on failure only: around each message it would cost as much as the rest.
            with typed_errors(call):
                raise
    except (asyncio.InvalidStateError, Internal):
        raise await failure_of(call) from None


async def read_all(call: ResponseStream[Message]) -> list[Message]:
    """All responses of a call, which is cancelled if the caller is.

    Raises:
        AntiphonError: the call failed.
    """
    async with open_stream(call):
        return [message async for message in messages(call)]


async def result(call: Awaitable[Message]) -> Message:
    """The response of a call with one response; cancelled if the caller is.

    Raises:
        AntiphonError: the call failed.
    """
    with typed_errors(call):
        return await call


@contextmanager
def typed_errors(call: Any) -> Iterator[None]:
    """Turns gRPC's exceptions of this call into domain errors.

    gRPC raises CancelledError for a call that somebody cancelled, although the reading task
    itself goes on; that becomes Cancelled.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        cancelled_from_outside = task is not None and task.cancelling() > 0
        if cancelled_from_outside or not call.cancelled():
            raise
        raise Cancelled("the call was cancelled") from None
