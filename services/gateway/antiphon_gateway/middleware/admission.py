"""Fails fast when more requests run than the backends can hold."""

from __future__ import annotations

from antiphon_core import metrics
from antiphon_core.errors import ResourceExhausted
from antiphon_core.request_context import current

from antiphon_gateway.clients import Backends
from antiphon_gateway.http import Receive, Scope, Send
from antiphon_gateway.middleware.request import App

GENERATING = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/responses",
)
"""Routes whose requests the llm services hold."""
BATCH_SHARE = 0.5
"""Batch work is refused from here on, so that it never takes the room of interactive work."""
_RETRY_SECONDS = 1.0

_running = metrics.gauge("llm_requests_in_flight", "Requests that the llm services hold")


class AdmissionMiddleware:
    """Bounds the requests that wait for or run in the llm services.

    The bound is what the ready ones advertise, rows and queue together; without an advertised
    limit there is none, and the services refuse by themselves.

    Args:
        app: what it wraps.
        backends: whose limits count.
    """

    def __init__(self, app: App, backends: Backends) -> None:
        self._app = app
        self._backends = backends
        self._count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in GENERATING:
            await self._app(scope, receive, send)
            return
        self._check()
        self._count += 1
        _running.inc()
        try:
            await self._app(scope, receive, send)
        finally:
            self._count -= 1
            _running.dec()

    def _check(self) -> None:
        limit = self._backends.llm.pool.in_flight_limit
        if limit is None:
            return
        is_batch = current().priority == "batch"
        mark = max(1, int(limit * BATCH_SHARE)) if is_batch else limit
        if self._count >= mark:
            kind = "batch requests wait while" if is_batch else "no more are taken while"
            raise ResourceExhausted(
                f"{kind} {mark} requests or more are in flight",
                reason="QUEUE_FULL",
                metadata={"limit": str(mark), "observed": str(self._count)},
                retry_after=_RETRY_SECONDS,
            )
