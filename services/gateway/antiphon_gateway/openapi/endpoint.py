"""GET /openapi.json."""

from __future__ import annotations

import asyncio
from functools import cache

import msgspec
from starlette.routing import BaseRoute, Route

from antiphon_gateway.http import Receive, Scope, Send, send_response
from antiphon_gateway.realtime.routes import ROUTES as REALTIME_ROUTES
from antiphon_gateway.release import release
from antiphon_gateway.routes.table import rest_routes


def documented_routes() -> list[BaseRoute]:
    """The routes of the protocol, and the one that describes them."""
    return [
        *rest_routes(),
        *REALTIME_ROUTES,
        Route("/openapi.json", OpenApi(), methods=["GET"]),
    ]


@cache
def openapi_json() -> bytes:
    """The document; made once, on demand."""
    # The schemas of all wire models take a while, and few processes are ever asked.
    from antiphon_gateway.openapi.document import build_document

    document = build_document(documented_routes(), release())
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


class OpenApi:
    """The route as a bare ASGI application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_response(send, 200, await asyncio.to_thread(openapi_json))
