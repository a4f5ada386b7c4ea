"""Settings of identity, section ``[gateway.identity]``."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from antiphon_core.config import Settings, setting
from pydantic import field_validator

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class JwtIssuer(Settings):
    """One issuer whose tokens are accepted."""

    issuer: str = setting(doc="Value of the claim iss.")
    audience: str = setting(doc="Value that the claim aud must have or hold.")
    jwks_url: str = setting(
        "", doc="Where the issuer's keys are; empty asks its .well-known/openid-configuration."
    )
    tenant_claim: str = setting("tenant", doc="Claim that names the tenant.")
    scope_claim: str = setting(
        "scope", doc="Claim with the scopes: a list, or words with spaces between."
    )
    limits_claim: str = setting(
        "antiphon_limits", doc="Claim with an object of quota limits; absent sets none."
    )

    @field_validator("issuer", "jwks_url")
    @classmethod
    def _secure(cls, url: str) -> str:
        parts = urlsplit(url)
        if url and parts.scheme != "https" and parts.hostname not in _LOOPBACK:
            raise ValueError("must be an https URL")
        return url


class IdentitySettings(Settings):
    """Where credentials are looked up beside ``api_keys``."""

    keys_file: Path | None = setting(
        None, doc="TOML file of [[keys]] tables; read again within 2 s of a change."
    )
    stored_keys: bool = setting(
        False, doc="Accept the API keys of the store, as `antiphon keys create` makes them."
    )
    stored_key_grace_seconds: float = setting(
        60.0, doc="Keys seen before are accepted for so long while the store is lost.", ge=0
    )
    jwt_issuers: list[JwtIssuer] = setting(
        doc="Issuers whose signed tokens are accepted.", default_factory=list
    )
    verifier: str = setting(
        "",
        doc="package.module:factory of a verifier of one's own; the factory takes no argument "
        "and returns an object with `async verify(token) -> Principal | None`.",
    )
    trusted_hops: int = setting(
        0,
        doc="Proxies in front that add to X-Forwarded-For; 0 takes the address of the connection.",
        ge=0,
        le=8,
    )

    @property
    def is_configured(self) -> bool:
        """Whether requests need credentials."""
        return bool(self.keys_file or self.stored_keys or self.jwt_issuers or self.verifier)
