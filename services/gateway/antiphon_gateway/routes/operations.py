"""GET /health and /health/ready, and the metrics of the operations listener."""

from __future__ import annotations

import asyncio

import msgspec
from antiphon_core import metrics
from antiphon_core.lifecycle import State
from msgspec import Struct
from starlette.routing import Route, Router

from antiphon_gateway.http import Receive, Scope, Send, send_response
from antiphon_gateway.routes.common import gateway_of


class HealthReport(Struct):
    """Answer of a probe."""

    status: str
    reasons: list[str]


class Health:
    """Liveness: the process and its event loop work, whatever the backends do."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_response(send, 200, msgspec.json.encode(HealthReport("ok", [])))


class Readiness:
    """Readiness from cached facts; a probe makes no call."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = gateway_of(scope)
        reasons = gateway.unready_reasons
        if gateway.lifecycle.state in (State.DRAINING, State.STOPPED):
            reasons = ["draining", *reasons]
        elif not gateway.lifecycle.is_ready:
            reasons = ["starting", *reasons]
        reasons = list(dict.fromkeys(reasons))
        report = HealthReport("unready" if reasons else "ready", reasons)
        status = 503 if reasons else 200
        await send_response(send, status, msgspec.json.encode(report))


class Metrics:
    """OpenMetrics text, rendered off the event loop once for all scrapes that wait for it."""

    def __init__(self) -> None:
        self._rendering: asyncio.Task[bytes] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._rendering is None or self._rendering.done():
            self._rendering = asyncio.create_task(asyncio.to_thread(metrics.render))
        # One scrape that goes away must not cancel the text that others wait for.
        text = await asyncio.shield(self._rendering)
        await send_response(send, 200, text, content_type=metrics.CONTENT_TYPE.encode())


def operations_router() -> Router:
    """Routes of the operations listener."""
    return Router(
        [
            Route("/metrics", Metrics(), methods=["GET"]),
            Route("/health", Health(), methods=["GET"]),
            Route("/health/ready", Readiness(), methods=["GET"]),
        ],
        redirect_slashes=False,
    )
