"""The outermost middleware: identity of the request, its errors, its log line and its metrics."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from antiphon_core import metrics
from antiphon_core.errors import AntiphonError, InvalidArgument, NotFound
from antiphon_core.logs import get_logger
from antiphon_core.rpc.context import RequestContext, new_request_id, use_context
from antiphon_core.telemetry import continue_trace
from starlette.exceptions import HTTPException

from antiphon_gateway.http import (
    JSON,
    ClientDisconnected,
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    header,
    send_response,
)
from antiphon_gateway.identity.credentials import client_address
from antiphon_gateway.openai.errors import (
    ErrorRow,
    error_body,
    error_headers,
    internal_error,
    row_of,
)

_REQUEST_ID_FORM = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_CLIENT_CLOSED = 499

log = get_logger(__name__)

_requests = metrics.counter(
    "http_requests_total", "Finished HTTP requests", ("route", "method", "code")
)
_seconds = metrics.histogram("http_request_seconds", "Duration of HTTP requests", ("route",))
_in_flight = metrics.gauge("http_requests_in_flight", "HTTP requests being served")
_refusals = metrics.counter(
    "http_refusals_total", "Requests answered with an error", ("layer", "reason", "status")
)

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RequestMiddleware:
    """Mints or keeps the request id, continues the trace, and turns errors into bodies.

    Args:
        app: what it wraps.
        trusted_hops: proxies in front whose X-Forwarded-For counts.
        deadline_seconds: of one request, for every call that it makes.
    """

    def __init__(self, app: App, *, trusted_hops: int, deadline_seconds: float) -> None:
        self._app = app
        self._trusted_hops = trusted_hops
        self._deadline_seconds = deadline_seconds
        self.active = 0
        """Requests being served."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        given = header(scope, b"x-request-id")
        kept = _REQUEST_ID_FORM.fullmatch(given)
        request_id = given.decode() if kept else new_request_id()
        parent = header(scope, b"traceparent").decode("latin-1")
        trace = str(continue_trace(parent or None))
        # A socket lives as long as its session; its calls have their own limits.
        is_http = scope["type"] == "http"
        deadline = time.time() + self._deadline_seconds if is_http else None
        context = RequestContext(request_id, trace, deadline=deadline)
        scope["request_id"] = request_id
        scope["client_address"] = client_address(
            scope["headers"], (scope.get("client") or ("",))[0], self._trusted_hops
        )
        self.active += 1
        _in_flight.inc()
        try:
            with use_context(context):
                if scope["type"] == "websocket":
                    await self._upgrade(scope, receive, send)
                else:
                    await self._serve(scope, receive, send, request_id)
        finally:
            self.active -= 1
            _in_flight.dec()

    async def _upgrade(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A socket answers for itself once a route has it; before that, as HTTP does."""
        try:
            await self._app(scope, receive, send)
        except AntiphonError as error:
            row = self._note(scope, error)
            start = {
                "type": "websocket.http.response.start",
                "status": row.status,
                "headers": [(b"content-type", JSON), *error_headers(error)],
            }
            await send(start)
            await send({"type": "websocket.http.response.body", "body": error_body(error)})

    async def _serve(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        response = _ResponseHead(send, request_id)
        scope["response_head"] = response
        try:
            await self._app(scope, receive, response.send)
        except ClientDisconnected:
            response.status = _CLIENT_CLOSED
            log.info("client_disconnected", route=_route(scope))
        except HTTPException as error:
            await self._refuse(scope, response, _route_error(scope, error))
        except AntiphonError as error:
            await self._refuse(scope, response, error)
        except Exception:
            log.exception("request_failed", route=_route(scope))
            await self._refuse(scope, response, internal_error(request_id))
        finally:
            route = _route(scope)
            _requests.labels(route, scope["method"], response.status).inc()
            _seconds.labels(route).observe(time.perf_counter() - response.started)

    def _note(self, scope: Scope, error: AntiphonError) -> ErrorRow:
        """Counts and logs a refusal."""
        row = row_of(error)
        layer = scope.get("layer") or ("gateway" if row.status < 500 else "backend")
        _refusals.labels(layer, error.reason, row.status).inc()
        log.warning(
            "request_refused",
            route=_route(scope),
            status=row.status,
            layer=layer,
            reason=error.reason,
            client=scope["client_address"],
            message=error.message[:500],
            **{key: value for key, value in error.metadata.items() if key in _LOGGED_METADATA},
        )
        return row

    async def _refuse(self, scope: Scope, response: _ResponseHead, error: AntiphonError) -> None:
        row = self._note(scope, error)
        if response.is_started:
            # A whole response cannot follow a started one; closing tells the client it broke.
            raise error
        headers = [*error_headers(error), *_extra_headers(error)]
        body = error_body(error, _route(scope))
        await send_response(response.send, row.status, body, headers=headers)


_LOGGED_METADATA = ("field", "limit", "observed", "phase")


class _ResponseHead:
    """Adds the common headers to the response's start and remembers its status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id.encode()
        self.added: list[Callable[[], Headers]] = []
        """Asked for further headers when the response begins."""
        self.started = time.perf_counter()
        self.is_started = False
        self.status: Any = 0

    async def send(self, message: Message) -> None:
        if not self.is_started and message["type"] == "http.response.start":
            self.is_started = True
            self.status = message["status"]
            elapsed = int((time.perf_counter() - self.started) * 1000)
            message["headers"] = [
                *message.get("headers", ()),
                *(pair for more in self.added for pair in more()),
                (b"x-request-id", self._request_id),
                (b"openai-processing-ms", str(elapsed).encode()),
            ]
        await self._send(message)


def add_head(scope: Scope, headers: Callable[[], Headers]) -> None:
    """Adds headers to whatever response the request gets, errors included."""
    scope["response_head"].added.append(headers)


def _route(scope: Scope) -> str:
    route = scope.get("route")
    return route.path if route is not None else "unknown"


def _route_error(scope: Scope, error: HTTPException) -> AntiphonError:
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return InvalidArgument(
            f"{scope['method']} is not allowed on {scope['path']}; allowed: {allowed}",
            reason="METHOD_NOT_ALLOWED",
            metadata={"allow": allowed},
        )
    return NotFound(f"no route {scope['method']} {scope['path']}", reason="UNKNOWN_ROUTE")


def _extra_headers(error: AntiphonError) -> list[tuple[bytes, bytes]]:
    headers = []
    if error.reason == "METHOD_NOT_ALLOWED":
        headers.append((b"allow", error.metadata["allow"].encode()))
    if error.reason == "UNAUTHENTICATED":
        headers.append((b"www-authenticate", b"Bearer"))
    return headers
