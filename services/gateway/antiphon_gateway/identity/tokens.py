"""Signed tokens (RFC 7519) of configured issuers, checked with PyJWT against their JWKS."""

from __future__ import annotations

import asyncio
import hashlib
import time
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

import jwt
import msgspec
from antiphon_core.errors import Unauthenticated, Unavailable
from antiphon_core.logs import get_logger

from antiphon_gateway.identity.keys import LOGGED_DIGITS, TenantName
from antiphon_gateway.identity.principal import ALL_SCOPES, Principal
from antiphon_gateway.identity.settings import JwtIssuer
from antiphon_gateway.quota.limits import QuotaLimits

ALGORITHMS = ("RS256", "ES256", "EdDSA")
LEEWAY_SECONDS = 60
REFETCH_SECONDS = 60.0
"""Unknown key ids make one fetch in so long."""
REFRESH_SECONDS = 3600.0
"""Age at which known keys are fetched again, so that withdrawn ones end."""
_FETCH_TIMEOUT_SECONDS = 5.0
_MAX_FETCH_BYTES = 1024 * 1024

log = get_logger(__name__)


class KeySet:
    """The keys of one issuer, fetched when needed.

    Args:
        issuer: whose.
    """

    def __init__(self, issuer: JwtIssuer) -> None:
        self._issuer = issuer
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_at = float("-inf")
        self._lock = asyncio.Lock()

    async def key(self, key_id: str) -> jwt.PyJWK:
        """The key of a token's ``kid``.

        Raises:
            Unauthenticated: the issuer has no such key.
            Unavailable: the keys cannot be fetched.
        """
        if self._is_due(key_id):
            async with self._lock:
                if self._is_due(key_id):
                    try:
                        await self._fetch()
                    finally:
                        # A failure counts too: a dead issuer is not asked for each request.
                        self._fetched_at = time.monotonic()
        if key_id not in self._keys:
            raise Unauthenticated("the token is signed with a key that its issuer does not publish")
        return self._keys[key_id]

    def _is_due(self, key_id: str) -> bool:
        age = time.monotonic() - self._fetched_at
        return age > REFRESH_SECONDS or (key_id not in self._keys and age > REFETCH_SECONDS)

    async def _fetch(self) -> None:
        url = self._issuer.jwks_url
        try:
            if not url:
                base = self._issuer.issuer.rstrip("/")
                found = await _get_json(f"{base}/.well-known/openid-configuration")
                url = str(found["jwks_uri"])
            fetched = jwt.PyJWKSet.from_dict(await _get_json(url))
        except (OSError, ValueError, KeyError, jwt.PyJWTError) as error:
            log.error("jwks_unavailable", issuer=self._issuer.issuer, error=str(error)[:200])
            if not self._keys:
                raise Unavailable(
                    "the keys of the token's issuer cannot be fetched",
                    reason="NO_BACKEND",
                    retry_after=REFETCH_SECONDS,
                ) from None
            return
        self._keys = {key.key_id: key for key in fetched.keys if key.key_id}


class TokenVerifier:
    """Accepts the tokens of the configured issuers."""

    def __init__(self, issuers: Sequence[JwtIssuer]) -> None:
        self._issuers = {issuer.issuer: (issuer, KeySet(issuer)) for issuer in issuers}

    async def verify(self, token: str) -> Principal | None:
        """See Verifier; None for what does not look like a signed token."""
        if token.count(".") != 2:
            return None
        try:
            header = jwt.get_unverified_header(token)
            # Read before the check only to learn whose keys to check with.
            named = jwt.decode(token, options={"verify_signature": False}).get("iss")
        except jwt.PyJWTError:
            return None
        if header.get("alg") not in ALGORITHMS:
            raise Unauthenticated(f"tokens must be signed with one of {', '.join(ALGORITHMS)}")
        if named not in self._issuers:
            raise Unauthenticated("the token's issuer is not accepted")
        issuer, keys = self._issuers[named]
        key = await keys.key(str(header.get("kid", "")))
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=issuer.audience,
                issuer=issuer.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["iss", "aud", "exp"]},
            )
        except jwt.PyJWTError as error:
            raise Unauthenticated(f"the token is not valid: {error}") from None
        return _principal(claims, issuer)


def _principal(claims: Mapping[str, Any], issuer: JwtIssuer) -> Principal:
    scopes = claims.get(issuer.scope_claim, ())
    words = scopes.split() if isinstance(scopes, str) else scopes
    name = f"{claims['iss']}\0{claims.get('sub', '')}"
    try:
        tenant = msgspec.convert(claims.get(issuer.tenant_claim, ""), TenantName)
        limits = msgspec.convert(claims.get(issuer.limits_claim, {}), QuotaLimits)
        granted = frozenset(msgspec.convert(words, list[str])) & ALL_SCOPES
    except msgspec.ValidationError as error:
        raise Unauthenticated(f"the token's claims cannot be read: {error}") from None
    return Principal(
        tenant=tenant,
        key_id=hashlib.sha256(name.encode()).hexdigest()[:LOGGED_DIGITS],
        scopes=granted,
        limits=limits,
    )


async def _get_json(url: str) -> dict[str, Any]:
    def fetch() -> bytes:
        # The URL's scheme was checked where it was configured, or comes from the issuer itself.
        with urllib.request.urlopen(url, timeout=_FETCH_TIMEOUT_SECONDS) as response:
            return response.read(_MAX_FETCH_BYTES)

    if not url.startswith(("https://", "http://")):
        raise ValueError(f"{url!r} is not an http URL")
    return msgspec.json.decode(await asyncio.to_thread(fetch), type=dict[str, Any])
