"""ASGI helpers: bodies under bounds, whole responses, disconnects noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

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


async def body_chunks(receive: Receive) -> AsyncIterator[bytes]:
    """The request body piece by piece; the limits middleware bounds size and pace.

    Raises:
        InvalidArgument: TOO_LARGE.
        DeadlineExceeded: INPUT_IDLE.
        ClientDisconnected: the client went away before the end.
    """
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        chunk = message.get("body", b"")
        if chunk:
            yield chunk
        if not message.get("more_body", False):
            return


async def read_body(receive: Receive) -> bytes:
    """The whole request body; raises as ``body_chunks`` does."""
    return b"".join([chunk async for chunk in body_chunks(receive)])


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
