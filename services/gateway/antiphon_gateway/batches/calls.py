"""Requests that the gateway makes of itself: the same application, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec import Struct

from antiphon_gateway.http import Message
from antiphon_gateway.identity.principal import Principal
from antiphon_gateway.middleware.request import App


class Answer(Struct):
    """A whole response."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes


async def call_self(
    app: App, path: str, body: bytes, principal: Principal, request_id: str
) -> Answer:
    """POSTs to a route at batch priority; cancelling the task cancels the work.

    Args:
        app: the gateway.
        path: of the route.
        body: JSON.
        principal: whom the request is for; nothing is authenticated again.
        request_id: what logs and services know it by.
    """
    answer = Answer(0, {}, b"")
    pieces: list[bytes] = []
    given = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if given:
            return given.pop()
        await asyncio.get_running_loop().create_future()  # nobody disconnects
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = dict(message["headers"])
        else:
            pieces.append(message.get("body", b""))

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "client": None,
        "server": None,
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", request_id.encode()),
            (b"x-antiphon-priority", b"batch"),
        ],
        "principal": principal,
        "is_batch": True,
    }
    await app(scope, receive, send)
    answer.body = b"".join(pieces)
    return answer
