"""Cross-origin requests of browsers: refused by silence unless the origin is listed."""

from __future__ import annotations

from collections.abc import Callable

from antiphon_gateway.config import CorsSettings
from antiphon_gateway.http import Headers, Receive, Scope, Send, header
from antiphon_gateway.middleware.request import App, add_head

_METHODS = b"GET, POST, DELETE"
_EXPOSED = (
    b"x-request-id, openai-processing-ms, retry-after, retry-after-ms, x-should-retry, "
    b"x-antiphon-ignored, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    b"x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, "
    b"x-ratelimit-reset-tokens"
)


class CorsMiddleware:
    """Answers preflights and marks responses (the fetch standard's CORS protocol).

    Args:
        app: what it wraps.
        settings: which origins; none switches it off.
    """

    def __init__(self, app: App, settings: CorsSettings) -> None:
        self._app = app
        self._settings = settings
        self._origins = {origin.encode() for origin in settings.allowed_origins}
        self._max_age = str(settings.max_age_seconds).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._origins:
            await self._app(scope, receive, send)
            return
        origin = header(scope, b"origin")
        is_allowed = bool(origin) and (origin in self._origins or b"*" in self._origins)
        if is_allowed and _is_preflight(scope):
            await self._answer_preflight(scope, send, origin)
            return
        add_head(scope, self._marks(origin) if is_allowed else _only_vary)
        await self._app(scope, receive, send)

    def _marks(self, origin: bytes) -> Callable[[], Headers]:
        headers = [*self._allowed(origin), (b"access-control-expose-headers", _EXPOSED)]
        return lambda: headers

    def _allowed(self, origin: bytes) -> list[tuple[bytes, bytes]]:
        shown = b"*" if b"*" in self._origins else origin
        headers = [(b"access-control-allow-origin", shown), (b"vary", b"Origin")]
        if self._settings.allow_credentials:
            headers.append((b"access-control-allow-credentials", b"true"))
        return headers

    async def _answer_preflight(self, scope: Scope, send: Send, origin: bytes) -> None:
        headers = [
            *self._allowed(origin),
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-max-age", self._max_age),
        ]
        asked = header(scope, b"access-control-request-headers")
        if asked:
            headers.append((b"access-control-allow-headers", asked))
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def _is_preflight(scope: Scope) -> bool:
    return scope["method"] == "OPTIONS" and bool(header(scope, b"access-control-request-method"))


def _only_vary() -> Headers:
    return [(b"vary", b"Origin")]
