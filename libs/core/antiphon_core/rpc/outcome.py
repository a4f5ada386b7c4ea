"""How a call ended, as its peer tells it.

A write that meets the end of a call makes grpc.aio put an INTERNAL status of its own in the place
of the peer's, before the peer's has come or after it, and then for good. The peer's is therefore
kept when the call is first done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import grpc.aio

from antiphon_core.errors import AntiphonError, Unavailable
from antiphon_core.rpc.errors import from_rpc_error

Value = TypeVar("Value")

_MADE_UP = "Internal error from Core"
"""Details of the status that a failed write leaves."""
_WAIT_SECONDS = 1.0
_POLL_SECONDS = 0.002


class StreamCall(Protocol):
    """A grpc.aio call with a stream on at least one side."""

    def cancel(self) -> bool: ...
    def add_done_callback(self, callback: Any) -> None: ...
    async def code(self) -> grpc.StatusCode: ...
    async def details(self) -> str: ...
    async def trailing_metadata(self) -> Any: ...


_peer_status: WeakKeyDictionary[Any, grpc.aio.AioRpcError] = WeakKeyDictionary()


def keep_status(call: Any) -> Any:
    """Remembers the status that the peer gives this call; returns the call."""
    call.add_done_callback(_remember)
    return call


async def failure_of(call: StreamCall) -> AntiphonError:
    """Why a call that cannot go on is over; Unavailable when its peer ended it in order."""
    status = _peer_status.get(call)
    deadline = asyncio.get_running_loop().time() + _WAIT_SECONDS
    while status is None and asyncio.get_running_loop().time() < deadline:
        current = grpc.aio.AioRpcError(
            await call.code(),
            grpc.aio.Metadata(),
            await call.trailing_metadata(),
            await call.details(),
        )
        if current.details() == _MADE_UP:
            await asyncio.sleep(_POLL_SECONDS)
        else:
            status = current
    if status is None:
        return Unavailable("the connection broke while the peer was being written to")
    if status.code() is grpc.StatusCode.OK:
        return Unavailable("the peer ended the stream before its input was complete")
    return from_rpc_error(status)


def _remember(call: StreamCall) -> None:
    details = _ready(call.details())
    if details != _MADE_UP:
        _peer_status[call] = grpc.aio.AioRpcError(
            _ready(call.code()), grpc.aio.Metadata(), _ready(call.trailing_metadata()), details
        )


def _ready(value: Coroutine[Any, Any, Value]) -> Value:
    """The result of a coroutine that has nothing to wait for: the call is done."""
    try:
        value.send(None)
    except StopIteration as finished:
        return finished.value
    raise RuntimeError("a finished call does not know its status")
