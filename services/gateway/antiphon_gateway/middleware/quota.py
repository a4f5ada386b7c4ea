"""Admits authenticated requests by the quotas of their key and tenant."""

from __future__ import annotations

from antiphon_gateway.http import Receive, Scope, Send
from antiphon_gateway.middleware.request import App, add_head
from antiphon_gateway.quota.meter import use_meter
from antiphon_gateway.quota.quotas import Quotas


class QuotaMiddleware:
    """Takes a request of every limit, and makes its meter current for the routes.

    Args:
        app: what it wraps.
        quotas: of this process.
    """

    def __init__(self, app: App, quotas: Quotas) -> None:
        self._app = app
        self._quotas = quotas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = scope.get("principal")
        if principal is None:
            await self._app(scope, receive, send)
            return
        scope["layer"] = "quota"
        meter = await self._quotas.admit(principal, is_batch=scope.get("is_batch", False))
        del scope["layer"]
        add_head(scope, meter.headers)
        with use_meter(meter):
            await self._app(scope, receive, send)
