"""Client secrets: sealed tokens that any replica with the same key verifies."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import zlib
from typing import Any

import msgspec
from antiphon_core.errors import InvalidArgument, Unauthenticated

from antiphon_gateway.identity.principal import OPEN, Principal

PREFIX = "ek_"
SHORTEST_SECONDS = 10
LONGEST_SECONDS = 7200
DEFAULT_SECONDS = 600
MAX_TOKEN_BYTES = 8192
"""Tokens travel in request headers, which proxies bound."""
_MAX_CLAIMS_BYTES = 64 * 1024
_MAC_BYTES = 32

_PROCESS_KEY = secrets.token_bytes(32)


class Claims(msgspec.Struct, frozen=True):
    """What a token grants."""

    expires_at: int
    """Seconds since the epoch."""
    model: str
    """Language model; of a transcription session, its recogniser or empty."""
    session: dict[str, Any]
    """Configuration that a session of this token starts with."""
    principal: Principal = OPEN
    """Who asked for it: the session is theirs."""
    nonce: str = ""


class Sealer:
    """Makes and verifies tokens.

    Args:
        key: shared by all replicas; empty takes a key that lives as long as this process.
    """

    def __init__(self, key: str) -> None:
        self._key = hashlib.sha256(b"antiphon client secret\0" + key.encode()).digest()
        if not key:
            self._key = _PROCESS_KEY

    def seal(self, claims: Claims) -> str:
        """The token of these claims.

        Raises:
            InvalidArgument: the session is too large to travel in a header.
        """
        payload = zlib.compress(msgspec.json.encode(claims))
        token = PREFIX + _text(self._mac(payload) + payload)
        if len(token) > MAX_TOKEN_BYTES:
            raise InvalidArgument(
                f"the session makes a client secret of {len(token)} bytes; at most "
                f"{MAX_TOKEN_BYTES} are served. Send large instructions or tools with "
                "session.update instead",
                field="session",
                metadata={"limit": str(MAX_TOKEN_BYTES), "observed": str(len(token))},
            )
        return token

    def open(self, token: str, now: float) -> Claims:
        """The claims of a token.

        Args:
            token: what the client sent.
            now: seconds since the epoch.

        Raises:
            Unauthenticated: malformed, forged or expired.
        """
        try:
            sealed = _bytes(token.removeprefix(PREFIX))
        except (binascii.Error, ValueError):
            raise Unauthenticated("the client secret is malformed") from None
        mac, payload = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(payload)):
            raise Unauthenticated("the client secret is not known")
        unpacked = zlib.decompressobj().decompress(payload, _MAX_CLAIMS_BYTES)
        claims = msgspec.json.decode(unpacked, type=Claims)
        if claims.expires_at <= now:
            raise Unauthenticated("the client secret has expired; ask for another")
        return claims

    def _mac(self, payload: bytes) -> bytes:
        return hmac.digest(self._key, payload, "sha256")


def is_secret(token: str) -> bool:
    """Whether a bearer token claims to be a client secret."""
    return token.startswith(PREFIX)


def nonce() -> str:
    """Makes two tokens of the same claims differ."""
    return secrets.token_hex(8)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
