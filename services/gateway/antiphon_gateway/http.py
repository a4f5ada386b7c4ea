"""ASGI helpers: bodies under bounds, whole responses, disconnects noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from antiphon_core.errors import DeadlineExceeded, InvalidArgument

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

JSON = b"application/json"


class ClientDisconnected(Exception):
    """The client went away; nobody is left to answer."""


def header(scope: Scope, name: bytes) -> bytes:
    """The first value of a header, given in lower case; empty when absent."""
    for key, value in scope["headers"]:
        if key == name:
            return value
    return b""


async def body_chunks(
    scope: Scope, receive: Receive, limit: int, idle_seconds: float
) -> AsyncIterator[bytes]:
    """The request body piece by piece.

    Raises:
        InvalidArgument: TOO_LARGE, before any byte is read where the length is declared.
        DeadlineExceeded: INPUT_IDLE, no byte for ``idle_seconds``.
        ClientDisconnected: the client went away before the end.
    """
    declared = header(scope, b"content-length")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit, int(declared))
    received = 0
    while True:
        try:
            async with asyncio.timeout(idle_seconds):
                message = await receive()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the request body brought nothing for {idle_seconds:g} s", reason="INPUT_IDLE"
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        chunk = message.get("body", b"")
        received += len(chunk)
        if received > limit:
            raise _too_large(limit, received)
        if chunk:
            yield chunk
        if not message.get("more_body", False):
            return


async def read_body(scope: Scope, receive: Receive, limit: int, idle_seconds: float) -> bytes:
    """The whole request body; raises as ``body_chunks`` does."""
    return b"".join([chunk async for chunk in body_chunks(scope, receive, limit, idle_seconds)])


async def send_response(
    send: Send,
    status: int,
    body: bytes,
    *,
    content_type: bytes = JSON,
    headers: Headers = (),
) -> None:
    """Sends a whole response."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", content_type),
                (b"content-length", str(len(body)).encode()),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def cancel_on_disconnect(receive: Receive) -> AsyncIterator[None]:
    """Ends the block when the client goes away; enter it after the body has been read.

    Raises:
        ClientDisconnected: in place of the cancellation that ended the block.
    """
    owner = asyncio.current_task()
    assert owner is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        owner.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if gone and owner.uncancel() == 0:
            raise ClientDisconnected from None
        raise
    finally:
        watcher.cancel()


def _too_large(limit: int, observed: int) -> InvalidArgument:
    return InvalidArgument(
        f"the request body has more than {limit} bytes",
        reason="TOO_LARGE",
        metadata={"limit": str(limit), "observed": str(observed)},
    )
