"""API keys: compared as SHA-256 digests in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from antiphon_core.errors import Unauthenticated

_LOGGED_DIGITS = 12


class KeyVerifier:
    """Accepts the configured keys; accepts everybody where none is configured.

    Args:
        digests: lower-case SHA-256 hex digests of the accepted keys.
    """

    def __init__(self, digests: Sequence[str]) -> None:
        self._digests = tuple(digests)

    @property
    def is_required(self) -> bool:
        """Whether requests need a key."""
        return bool(self._digests)

    def verify(self, token: str) -> str:
        """The key's short id for logs; empty where no key is needed.

        Raises:
            Unauthenticated: absent or unknown key.
        """
        if not self._digests:
            return ""
        if not token:
            raise Unauthenticated("an API key is required: send 'Authorization: Bearer <key>'")
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
        # Every digest is compared, so that the time does not tell which one is near.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if True not in matches:
            raise Unauthenticated("the API key is not known")
        return digest[:_LOGGED_DIGITS]


def bearer_token(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """The token of an Authorization header; empty without one."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.partition(b" ")
            if scheme.lower() == b"bearer":
                return token.strip().decode("utf-8", "surrogateescape")
    return ""
