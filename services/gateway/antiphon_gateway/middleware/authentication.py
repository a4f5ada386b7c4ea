"""Asks for an API key on every path that does work; probes and the page stay open."""

from __future__ import annotations

from antiphon_gateway.auth import KeyVerifier, bearer_token
from antiphon_gateway.http import Receive, Scope, Send
from antiphon_gateway.middleware.request import App

_GUARDED = ("/v1/", "/tokenize", "/detokenize")


class AuthenticationMiddleware:
    """Verifies the bearer token of HTTP requests.

    WebSocket upgrades pass: browsers cannot send the header there, so the realtime endpoint
    verifies for itself with ``scope["app"].verifier``.
    """

    def __init__(self, app: App, verifier: KeyVerifier) -> None:
        self._app = app
        self._verifier = verifier

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_GUARDED):
            scope["key_id"] = self._verifier.verify(bearer_token(scope["headers"]))
        await self._app(scope, receive, send)
