"""The ASGI application: middleware around one router."""

from __future__ import annotations

from antiphon_core.lifecycle import Lifecycle
from starlette.routing import BaseRoute, Router, WebSocketRoute

from antiphon_gateway.auth import KeyVerifier
from antiphon_gateway.clients import Backends
from antiphon_gateway.config import GatewaySettings
from antiphon_gateway.http import Receive, Scope, Send
from antiphon_gateway.middleware.authentication import AuthenticationMiddleware
from antiphon_gateway.middleware.request import App, RequestMiddleware
from antiphon_gateway.realtime.endpoint import realtime_websocket
from antiphon_gateway.realtime.routes import ROUTES as REALTIME_ROUTES
from antiphon_gateway.routes import rest_routes
from antiphon_gateway.static import page_routes


class Gateway:
    """One application. Endpoints reach it as ``scope["app"]`` (``websocket.app``).

    Attributes:
        settings: the governing settings.
        backends: clients and cached status of the backends.
        lifecycle: state of this process.
        verifier: API keys; the realtime endpoint verifies with it before the upgrade.
    """

    def __init__(self, settings: GatewaySettings, backends: Backends, lifecycle: Lifecycle) -> None:
        self.settings = settings
        self.backends = backends
        self.lifecycle = lifecycle
        self.verifier = KeyVerifier(settings.api_keys)
        routes: list[BaseRoute] = [
            *rest_routes(),
            *REALTIME_ROUTES,
            WebSocketRoute("/v1/realtime", realtime_websocket),
            *page_routes(),
        ]
        router = Router(routes, redirect_slashes=False)
        self._requests = RequestMiddleware(
            AuthenticationMiddleware(router, self.verifier), settings.limits.header_bytes
        )

    @property
    def active_requests(self) -> int:
        """HTTP requests and WebSocket connections being served."""
        return self._requests.active

    def operations(self, router: App) -> App:
        """The application of the operations listener: same errors, no keys."""
        middleware = RequestMiddleware(router, self.settings.limits.header_bytes)

        async def operations(scope: Scope, receive: Receive, send: Send) -> None:
            scope["app"] = self
            await middleware(scope, receive, send)

        return operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        await self._requests(scope, receive, send)
