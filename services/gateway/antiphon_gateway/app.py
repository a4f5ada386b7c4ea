"""The ASGI application: middleware around one router."""

from __future__ import annotations

from antiphon_core.lifecycle import Lifecycle
from antiphon_gateway.auth import KeyVerifier
from antiphon_gateway.clients import Backends
from antiphon_gateway.config import GatewaySettings
from antiphon_gateway.http import Receive, Scope, Send
from antiphon_gateway.middleware.authentication import AuthenticationMiddleware
from antiphon_gateway.middleware.request import RequestMiddleware
from antiphon_gateway.realtime.endpoint import realtime_websocket
from antiphon_gateway.realtime.routes import ROUTES as REALTIME_ROUTES
from antiphon_gateway.routes import ROUTES
from antiphon_gateway.static import PageFiles
from starlette.routing import BaseRoute, Router, WebSocketRoute


class Gateway:
    """One application. Endpoints reach it as ``scope["app"]`` (``websocket.app``).

    Attributes:
        settings: the governing settings.
        backends: clients and cached status of the backends.
        lifecycle: state of this process.
        verifier: API keys; the realtime endpoint verifies with it before the upgrade.
    """

    def __init__(
        self, settings: GatewaySettings, backends: Backends, lifecycle: Lifecycle
    ) -> None:
        self.settings = settings
        self.backends = backends
        self.lifecycle = lifecycle
        self.verifier = KeyVerifier(settings.api_keys)
        routes: list[BaseRoute] = [
            *ROUTES,
            *REALTIME_ROUTES,
            WebSocketRoute("/v1/realtime", realtime_websocket),
            PageFiles(),
        ]
        router = Router(routes, redirect_slashes=False)
        self._requests = RequestMiddleware(
            AuthenticationMiddleware(router, self.verifier), settings.limits.header_bytes
        )

    @property
    def active_requests(self) -> int:
        """HTTP requests and WebSocket connections being served."""
        return self._requests.active

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        await self._requests(scope, receive, send)
