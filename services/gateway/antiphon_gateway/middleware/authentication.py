"""Who asks, for which tenant, how urgently; probes and the page stay open."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from antiphon_core.errors import InvalidArgument
from antiphon_core.request_context import current, use_context
from msgspec.structs import replace as replace_fields

from antiphon_gateway.http import Receive, Scope, Send, header
from antiphon_gateway.identity.credentials import token_of
from antiphon_gateway.identity.principal import Principal, use_principal
from antiphon_gateway.identity.verifiers import Identity
from antiphon_gateway.middleware.request import App

GUARDED = ("/v1/", "/tokenize", "/detokenize")
"""Beginnings of the paths that need credentials, where the deployment asks for any."""
_TENANT_FORM = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SCOPES = (
    ("/v1/admin/", "admin", "admin"),
    ("/v1/audio/voices", "audio", "voices.write"),
    ("/v1/audio/voice_consents", "audio", "voices.write"),
    ("/v1/audio/", "audio", "audio"),
    ("/v1/realtime", "realtime", "realtime"),
    ("/v1/files", "files", "files"),
    ("/v1/batches", "batch", "batch"),
    ("/v1/loras", "inference", "loras.write"),
    ("/v1/models", "", ""),
)
"""Path prefix, scope to read, scope to change; what is not listed needs ``inference``. Models may
be listed with any credentials."""


class AuthenticationMiddleware:
    """Authenticates HTTP requests and makes tenant and priority part of their context.

    WebSocket upgrades pass: browsers cannot send the header there, so the realtime endpoint
    authenticates for itself. A request that the gateway makes of itself, for a batch, brings its
    principal in ``scope["principal"]``, which no client can.
    """

    def __init__(self, app: App, identity: Identity) -> None:
        self._app = app
        self._identity = identity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(GUARDED):
            await self._app(scope, receive, send)
            return
        scope["layer"] = "identity"
        principal: Principal | None = scope.get("principal")
        if principal is None:
            principal = await self._identity.authenticate(token_of(scope["headers"]))
            principal = assume_tenant(
                principal, header(scope, b"x-antiphon-tenant").decode("latin-1")
            )
            scope["principal"] = principal
        needed = required_scope(scope["method"], scope["path"])
        if needed:
            principal.require(needed)
        asked = header(scope, b"x-antiphon-priority").decode("latin-1")
        with act_as(principal, asked):
            del scope["layer"]
            await self._app(scope, receive, send)


@contextmanager
def act_as(principal: Principal, asked_priority: str = "") -> Iterator[None]:
    """Makes principal, tenant and priority current inside the block.

    Args:
        principal: whom the work is for.
        asked_priority: of the request's header; only lowers what the principal has.

    Raises:
        InvalidArgument: no such priority.
    """
    if asked_priority not in ("", "interactive", "batch"):
        raise InvalidArgument(
            "X-Antiphon-Priority must be interactive or batch",
            field="x-antiphon-priority",
            allowed=("interactive", "batch"),
        )
    priority = "batch" if "batch" in (asked_priority, principal.priority) else "interactive"
    context = replace(current(), tenant=principal.tenant, priority=priority)
    with use_principal(principal), use_context(context):
        yield


def assume_tenant(principal: Principal, tenant: str) -> Principal:
    """The principal for another tenant; itself where none is named.

    Raises:
        PermissionDenied: without the scope ``tenant.assume``.
        InvalidArgument: malformed tenant.
    """
    if not tenant or tenant == principal.tenant:
        return principal
    principal.require("tenant.assume")
    if not _TENANT_FORM.fullmatch(tenant):
        raise InvalidArgument(
            f"X-Antiphon-Tenant must match {_TENANT_FORM.pattern}", field="x-antiphon-tenant"
        )
    return replace_fields(principal, tenant=tenant)


def required_scope(method: str, path: str) -> str:
    """The scope that a request needs; empty for none."""
    for prefix, reads, writes in _SCOPES:
        if path.startswith(prefix):
            return reads if method in ("GET", "HEAD", "OPTIONS") else writes
    return "inference"
