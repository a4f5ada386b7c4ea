"""Bounds on what a client may send: the head, the body's size, and its pace."""

from __future__ import annotations

import asyncio

from antiphon_core.errors import DeadlineExceeded, InvalidArgument

from antiphon_gateway.config import Limits
from antiphon_gateway.http import Message, Receive, Scope, Send, header
from antiphon_gateway.middleware.request import App
from antiphon_gateway.openai.audio import MAX_KNOWN_SPEAKERS, MAX_REFERENCE_CHARACTERS

_FORM_OVERHEAD_BYTES = 256 * 1024
"""Fields and boundaries of a form beside its file."""
_REFERENCES_BYTES = MAX_KNOWN_SPEAKERS * MAX_REFERENCE_CHARACTERS
"""Samples of known speakers, which are fields."""


class LimitsMiddleware:
    """Refuses large heads and bodies; the latter before a byte is read where they declare it.

    Args:
        app: what it wraps.
        limits: the bounds.
    """

    def __init__(self, app: App, limits: Limits) -> None:
        self._app = app
        self._limits = limits
        self._by_route = (
            ("/v1/files", limits.file_bytes + _FORM_OVERHEAD_BYTES),
            (
                "/v1/audio/transcriptions",
                limits.upload_bytes + _FORM_OVERHEAD_BYTES + _REFERENCES_BYTES,
            ),
            ("/v1/audio/translations", limits.upload_bytes + _FORM_OVERHEAD_BYTES),
            ("/v1/audio/voices", limits.upload_bytes + _FORM_OVERHEAD_BYTES),
            ("/v1/audio/voice_consents", limits.upload_bytes + _FORM_OVERHEAD_BYTES),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check_head(scope)
        if scope["type"] == "http":
            limit = self._body_limit(scope["path"])
            declared = header(scope, b"content-length")
            if declared.isdigit() and int(declared) > limit:
                raise _too_large(limit, int(declared))
            receive = _bounded(receive, limit, self._limits.body_idle_seconds)
        await self._app(scope, receive, send)

    def _check_head(self, scope: Scope) -> None:
        limit = self._limits.header_bytes
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size > limit:
            raise InvalidArgument(
                f"the request headers have more than {limit} bytes",
                reason="HEADERS_TOO_LARGE",
                metadata={"limit": str(limit), "observed": str(size)},
            )

    def _body_limit(self, path: str) -> int:
        for prefix, limit in self._by_route:
            if path == prefix:
                return limit
        return self._limits.json_bytes


def _bounded(receive: Receive, limit: int, idle_seconds: float) -> Receive:
    """The same messages; raises when the body is too large or brings nothing for too long."""
    received = 0
    is_whole = False

    async def bounded() -> Message:
        nonlocal received, is_whole
        if is_whole:
            return await receive()  # a disconnect, whenever it comes
        try:
            async with asyncio.timeout(idle_seconds):
                message = await receive()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the request body brought nothing for {idle_seconds:g} s", reason="INPUT_IDLE"
            ) from None
        received += len(message.get("body", b""))
        if received > limit:
            raise _too_large(limit, received)
        is_whole = not message.get("more_body", False)
        return message

    return bounded


def _too_large(limit: int, observed: int) -> InvalidArgument:
    return InvalidArgument(
        f"the request body has more than {limit} bytes",
        reason="TOO_LARGE",
        metadata={"limit": str(limit), "observed": str(observed)},
    )
