"""The ASGI application: middleware around one router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon_core.lifecycle import Lifecycle
from starlette.routing import BaseRoute, Route, Router, WebSocketRoute

from antiphon_gateway.clients import Backends
from antiphon_gateway.config import GatewaySettings
from antiphon_gateway.http import Receive, Scope, Send
from antiphon_gateway.identity.verifiers import build_identity
from antiphon_gateway.middleware.admission import AdmissionMiddleware
from antiphon_gateway.middleware.authentication import AuthenticationMiddleware
from antiphon_gateway.middleware.cors import CorsMiddleware
from antiphon_gateway.middleware.idempotency import IdempotencyMiddleware
from antiphon_gateway.middleware.limits import LimitsMiddleware
from antiphon_gateway.middleware.quota import QuotaMiddleware
from antiphon_gateway.middleware.request import App, RequestMiddleware
from antiphon_gateway.openapi.endpoint import documented_routes
from antiphon_gateway.quota.quotas import Quotas
from antiphon_gateway.realtime.endpoint import realtime_websocket
from antiphon_gateway.realtime.phrase_cache import PhraseCache
from antiphon_gateway.routes.authorize import PREFIX as AUTHORIZE
from antiphon_gateway.routes.authorize import Authorize
from antiphon_gateway.routes.response_run import RunningResponses
from antiphon_gateway.static import page_routes

if TYPE_CHECKING:
    from antiphon_gateway.batches.worker import BatchWorker
    from antiphon_gateway.store.storage import Storage

_BATCH_ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
)


class Gateway:
    """One application. Endpoints reach it as ``scope["app"]`` (``websocket.app``).

    Attributes:
        settings: the governing settings.
        backends: clients and cached status of the backends.
        lifecycle: state of this process.
        storage: what outlives the process; None where no store is configured.
        quotas: limits of keys and tenants, and the account of usage.
        responses: those that are being streamed.
        batches: works on batches, and is told of new ones; None without storage.
        batch_endpoints: paths that a batch may be for.
        identity: credentials; the realtime endpoint asks it before the upgrade.
        phrases: audio of acknowledgement phrases of realtime sessions.

    ``start`` before the first request, ``close`` after the last.
    """

    def __init__(self, settings: GatewaySettings, backends: Backends, lifecycle: Lifecycle) -> None:
        self.settings = settings
        self.backends = backends
        self.lifecycle = lifecycle
        self.storage = _open_storage(settings)
        self.identity = build_identity(
            settings.api_keys, settings.identity, self.storage.keys if self.storage else None
        )
        self.quotas = Quotas(settings.quota, self.storage.quotas if self.storage else None)
        self.responses = RunningResponses()
        self.batches = _batch_worker(self)
        self.phrases = PhraseCache()
        routes: list[BaseRoute] = [
            *documented_routes(),
            WebSocketRoute("/v1/realtime", realtime_websocket),
            Route(AUTHORIZE + "/{path:path}", Authorize()),
            *page_routes(),
        ]
        served = {route.path for route in routes if isinstance(route, Route)}
        self.batch_endpoints = tuple(path for path in _BATCH_ENDPOINTS if path in served)
        router = Router(routes, redirect_slashes=False)
        answered_once = IdempotencyMiddleware(
            AdmissionMiddleware(router, backends),
            self.storage.idempotency if self.storage else None,
            settings.limits.request_seconds,
        )
        admitted = QuotaMiddleware(answered_once, self.quotas)
        guarded = AuthenticationMiddleware(admitted, self.identity)
        limited = LimitsMiddleware(guarded, settings.limits)
        self._requests = self._outermost(CorsMiddleware(limited, settings.cors))

    @property
    def active_requests(self) -> int:
        """HTTP requests and WebSocket connections being served."""
        return self._requests.active

    def operations(self, router: App) -> App:
        """The application of the operations listener: same errors, no keys."""
        middleware = self._outermost(LimitsMiddleware(router, self.settings.limits))

        async def operations(scope: Scope, receive: Receive, send: Send) -> None:
            scope["app"] = self
            await middleware(scope, receive, send)

        return operations

    def start(self) -> None:
        """Begins what runs in the background; needs a running loop."""
        if self.storage is not None:
            self.storage.start()
        self.quotas.start()
        if self.batches is not None:
            self.batches.start()

    async def close(self) -> None:
        """Ends what runs in the background."""
        if self.batches is not None:
            await self.batches.close()
        await self.quotas.close()
        if self.storage is not None:
            await self.storage.close()

    @property
    def unready_reasons(self) -> list[str]:
        """Why requests would be refused, beside the state of this process; empty when ready."""
        reasons = self.backends.missing
        if self.storage is not None and not self.storage.store.is_available:
            reasons = [*reasons, "store_unavailable"]
        return reasons

    def _outermost(self, app: App) -> RequestMiddleware:
        return RequestMiddleware(
            app,
            trusted_hops=self.settings.identity.trusted_hops,
            deadline_seconds=self.settings.limits.request_seconds,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        await self._requests(scope, receive, send)


def _open_storage(settings: GatewaySettings) -> Storage | None:
    if not settings.store.is_configured:
        return None
    from antiphon_gateway.store.storage import Storage

    return Storage(settings.store)


def _batch_worker(gateway: Gateway) -> BatchWorker | None:
    if gateway.storage is None:
        return None
    from antiphon_gateway.batches.worker import BatchWorker

    return BatchWorker(
        gateway, gateway.storage, gateway.settings.batches, gateway.lifecycle, gateway.identity
    )
