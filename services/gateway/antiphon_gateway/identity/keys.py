"""API keys: 256 random bits, known by their SHA-256, with what they grant."""

from __future__ import annotations

import hashlib
import secrets
from typing import Annotated

from msgspec import Meta, Struct

from antiphon_gateway.identity.principal import ALL_SCOPES, USER_SCOPES, Principal, Priority
from antiphon_gateway.quota.limits import QuotaLimits

KEY_PREFIX = "sk-antiphon-"
LOGGED_DIGITS = 12
_KEY_BYTES = 32

Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
TenantName = Annotated[str, Meta(pattern="^[A-Za-z0-9._-]{0,64}$")]


class KeyRecord(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A key and what it grants; the key itself is nowhere."""

    sha256: Digest
    name: str = ""
    tenant: TenantName = ""
    scopes: tuple[str, ...] = tuple(sorted(USER_SCOPES))
    models: tuple[str, ...] | None = None
    voices: tuple[str, ...] | None = None
    priority: Priority = "interactive"
    strict_fields: bool = False
    limits: QuotaLimits = QuotaLimits()
    created_at: int = 0
    expires_at: int | None = None
    """Seconds since the epoch; None never."""
    revoked_at: int | None = None

    def __post_init__(self) -> None:
        unknown = sorted(set(self.scopes) - ALL_SCOPES)
        if unknown:
            raise ValueError(
                f"unknown scope {unknown[0]!r}; allowed: {', '.join(sorted(ALL_SCOPES))}"
            )

    @property
    def principal(self) -> Principal:
        """Whom requests with this key are for."""
        return Principal(
            tenant=self.tenant,
            key_id=key_id(self.sha256),
            scopes=frozenset(self.scopes),
            models=self.models,
            voices=self.voices,
            priority=self.priority,
            strict_fields=self.strict_fields,
            limits=self.limits,
            key_digest=self.sha256,
        )


def new_key() -> str:
    """A fresh key with 256 random bits."""
    return KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def digest_of(token: str) -> str:
    """The SHA-256 hex by which a key is known."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def key_id(digest: str) -> str:
    """What logs and usage show of a key."""
    return digest[:LOGGED_DIGITS]
