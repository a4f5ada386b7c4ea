"""/internal/authorize: credentials of requests that the edge sends past the gateway.

The edge asks with a request's head before it passes gRPC calls to the services and administration
to the admin service. It never routes this path itself, so nobody else can ask.
"""

from __future__ import annotations

from antiphon_gateway.http import Receive, Scope, Send, header, send_response
from antiphon_gateway.identity.credentials import token_of
from antiphon_gateway.middleware.authentication import assume_tenant, required_scope
from antiphon_gateway.routes.common import gateway_of

PREFIX = "/internal/authorize"

_GRPC_SCOPES = (
    # The body may ask for an adapter that every tenant uses, which a head does not show.
    ("/antiphon.llm.v1.LlmService/LoadAdapter", "admin"),
    ("/antiphon.llm.v1.LlmService/UnloadAdapter", "admin"),
    ("/antiphon.llm.v1.", "inference"),
    ("/antiphon.vocoder.v1.", "audio"),
)


class Authorize:
    """200 with the tenant of the credentials, or the refusal that the request itself would get.

    Model and voice lists, quotas and usage are not looked at: they need the request's body.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["layer"] = "identity"
        principal = await gateway_of(scope).identity.authenticate(token_of(scope["headers"]))
        principal = assume_tenant(principal, header(scope, b"x-antiphon-tenant").decode("latin-1"))
        needed = _scope_of(scope["method"], scope["path"].removeprefix(PREFIX))
        if needed:
            principal.require(needed)
        # Always sent, also empty: it takes the place of what the client sent.
        tenant = (b"x-antiphon-tenant", principal.tenant.encode())
        await send_response(send, 200, b"", headers=[tenant])


def _scope_of(method: str, path: str) -> str:
    for prefix, needed in _GRPC_SCOPES:
        if path.startswith(prefix):
            return needed
    return required_scope(method, path)
