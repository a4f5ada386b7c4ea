"""The identity of a request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from antiphon_core.errors import PermissionDenied
from msgspec import Struct

from antiphon_gateway.quota.limits import QuotaLimits

Priority = Literal["interactive", "batch"]

USER_SCOPES = frozenset(
    ("inference", "audio", "realtime", "files", "batch", "voices.write", "loras.write")
)
"""What a key may do unless it says otherwise."""
ALL_SCOPES = USER_SCOPES | {"metrics", "admin", "tenant.assume"}


class Principal(Struct, frozen=True):
    """Who a request is for and what it may use."""

    tenant: str = ""
    """Namespace of caches, adapters, files, batches, voices and idempotency keys."""
    key_id: str = ""
    """12 hex digits of the credential's hash, for logs and usage; empty in open mode."""
    scopes: frozenset[str] = USER_SCOPES
    models: tuple[str, ...] | None = None
    """Ids or aliases that may be used; None allows all."""
    voices: tuple[str, ...] | None = None
    priority: Priority = "interactive"
    """The highest that requests may have."""
    strict_fields: bool = False
    limits: QuotaLimits = QuotaLimits()
    key_digest: str = ""
    """SHA-256 hex of the API key, to see later whether it is still good; empty for others."""

    def require(self, scope: str) -> None:
        """Checks a scope.

        Raises:
            PermissionDenied: naming the scope.
        """
        if scope not in self.scopes:
            raise PermissionDenied(
                f"these credentials lack the scope {scope!r}", metadata={"scope": scope}
            )


OPEN = Principal()
"""Everybody, where no credentials are asked for: no administration, no other tenant."""

_current: ContextVar[Principal] = ContextVar("principal", default=OPEN)


def current_principal() -> Principal:
    """The principal of the current request."""
    return _current.get()


@contextmanager
def use_principal(principal: Principal) -> Iterator[None]:
    """Makes the principal current inside the block."""
    token = _current.set(principal)
    try:
        yield
    finally:
        _current.reset(token)
