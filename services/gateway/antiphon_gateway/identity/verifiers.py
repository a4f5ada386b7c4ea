"""From a token to a principal: every configured verifier in turn."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from typing import Protocol

from antiphon_core.errors import FailedPrecondition, Unauthenticated

from antiphon_gateway.identity.key_sources import (
    FixedKeys,
    KeyFile,
    KeyReader,
    KeySource,
    StoredKeys,
)
from antiphon_gateway.identity.keys import digest_of
from antiphon_gateway.identity.principal import OPEN, Principal
from antiphon_gateway.identity.settings import IdentitySettings


class Verifier(Protocol):
    """Recognises one kind of credentials."""

    async def verify(self, token: str) -> Principal | None:
        """Whom the token stands for; None when it is not of this verifier's kind.

        Raises:
            Unauthenticated: of this kind, and not good (any more).
            Unavailable: it cannot be told at the moment.
        """
        ...


class KeyVerifier:
    """API keys of several sources; the first that has the key decides."""

    def __init__(self, sources: Sequence[KeySource]) -> None:
        self._sources = sources

    async def verify(self, token: str) -> Principal | None:
        """See Verifier."""
        return await self.verify_digest(digest_of(token))

    async def verify_digest(self, digest: str) -> Principal | None:
        """As ``verify``, by the SHA-256 hex of the key."""
        for source in self._sources:
            record = await source.find(digest)
            if record is None:
                continue
            if record.revoked_at is not None:
                raise Unauthenticated("the API key was revoked")
            if record.expires_at is not None and record.expires_at <= time.time():
                raise Unauthenticated("the API key has expired")
            return record.principal
        return None


class Identity:
    """Authenticates requests.

    Args:
        verifiers: asked in order; with none, everybody is let in as ``OPEN``.
    """

    def __init__(self, verifiers: Sequence[Verifier]) -> None:
        self._verifiers = verifiers

    @property
    def is_required(self) -> bool:
        """Whether requests need credentials."""
        return bool(self._verifiers)

    async def authenticate(self, token: str) -> Principal:
        """The principal of a token.

        Raises:
            Unauthenticated: no, unknown, expired or revoked credentials.
            Unavailable: a source that could know them does not answer.
        """
        if not self._verifiers:
            return OPEN
        if not token:
            raise Unauthenticated("an API key is required: send 'Authorization: Bearer <key>'")
        for verifier in self._verifiers:
            principal = await verifier.verify(token)
            if principal is not None:
                return principal
        raise Unauthenticated("the API key is not known")

    async def check_again(self, principal: Principal) -> None:
        """Checks that what once authenticated the principal is still good, where that is known.

        Raises:
            Unauthenticated: its key was removed, revoked, or has expired.
            Unavailable: a source that could know does not answer.
        """
        if not principal.key_digest:
            return
        for verifier in self._verifiers:
            if isinstance(verifier, KeyVerifier):
                if await verifier.verify_digest(principal.key_digest) is None:
                    raise Unauthenticated("the API key is no longer known")
                return


def build_identity(
    api_keys: Sequence[str], settings: IdentitySettings, reader: KeyReader | None
) -> Identity:
    """The verifiers that the settings name.

    Args:
        api_keys: SHA-256 hex digests of the configuration's keys.
        settings: what else is accepted.
        reader: the store's keys, where there is a store.

    Raises:
        FailedPrecondition: the keys file or the verifier's path is wrong.
    """
    sources: list[KeySource] = []
    if api_keys:
        sources.append(FixedKeys(api_keys))
    if settings.keys_file is not None:
        sources.append(KeyFile(settings.keys_file))
    if settings.stored_keys:
        assert reader is not None  # the settings refuse stored keys without a store
        sources.append(StoredKeys(reader, settings.stored_key_grace_seconds))
    verifiers: list[Verifier] = []
    if settings.jwt_issuers:
        from antiphon_gateway.identity.tokens import TokenVerifier

        verifiers.append(TokenVerifier(settings.jwt_issuers))
    if sources:
        verifiers.append(KeyVerifier(sources))
    if settings.verifier:
        verifiers.append(load_verifier(settings.verifier))
    return Identity(verifiers)


def load_verifier(path: str) -> Verifier:
    """The verifier that ``package.module:factory`` makes.

    Raises:
        FailedPrecondition: there is no such factory.
    """
    module_name, _, name = path.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise FailedPrecondition(
            f"the verifier {path!r} cannot be loaded: {error}; give package.module:factory",
            field="identity.verifier",
        ) from None
    return factory()
