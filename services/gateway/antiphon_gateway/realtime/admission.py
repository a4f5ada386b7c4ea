"""Who may open a session, and with what: decided before the upgrade."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from antiphon_core.errors import PermissionDenied

from antiphon_gateway.clients import Backends
from antiphon_gateway.identity.credentials import token_of
from antiphon_gateway.identity.principal import Principal, use_principal
from antiphon_gateway.realtime.client_secrets import Sealer, is_secret
from antiphon_gateway.realtime.settings import RealtimeSettings
from antiphon_gateway.realtime.state import Served

if TYPE_CHECKING:
    from antiphon_gateway.app import Gateway

SUBPROTOCOL = "realtime"
KEY_SUBPROTOCOL = "openai-insecure-api-key."


@dataclass(frozen=True, slots=True)
class Admission:
    """What an accepted socket starts with."""

    model: str
    principal: Principal
    preset: dict[str, Any] | None
    subprotocol: str | None


async def admit(
    gateway: Gateway,
    headers: Sequence[tuple[bytes, bytes]],
    subprotocols: Sequence[str],
    model: str,
) -> Admission:
    """Checks credentials, model and backends of an upgrade request.

    Args:
        gateway: the application.
        headers: of the request.
        subprotocols: offered; a browser puts its key there.
        model: the query's ``model``; empty is the default.

    Raises:
        Unauthenticated: no, unknown or expired credentials.
        PermissionDenied: a client secret of another model, or no scope ``realtime``.
        NotFound: the model is not served.
        Unavailable: this process or a backend is not ready.
    """
    settings = gateway.settings.realtime
    gateway.lifecycle.require_ready()
    token = _token(headers, subprotocols)
    preset = None
    if is_secret(token):
        claims = Sealer(settings.secret_key).open(token, time.time())
        preset = claims.session
        principal = claims.principal
        await gateway.identity.check_again(principal)
        if model and resolve_model(gateway.backends, settings, model) != claims.model:
            raise PermissionDenied(
                f"the client secret is for model {claims.model!r}, not {model!r}"
            )
        model = claims.model
    else:
        principal = await gateway.identity.authenticate(token)
    principal.require("realtime")
    with use_principal(principal):
        resolved = resolve_model(gateway.backends, settings, model)
    gateway.backends.vocoder.pool.require_ready()
    gateway.backends.recognition.pool.require_ready()
    subprotocol = SUBPROTOCOL if SUBPROTOCOL in subprotocols else None
    return Admission(resolved, principal, preset, subprotocol)


def resolve_model(backends: Backends, settings: RealtimeSettings, name: str) -> str:
    """The id of the language model of a pipeline name.

    Raises:
        Unavailable: no llm service is ready.
        NotFound: MODEL_NOT_FOUND.
    """
    return backends.llm.resolve(settings.model_aliases.get(name, name)).id


def served(backends: Backends) -> Served:
    """Names that sessions may use at this moment."""
    voices = {name for voice in backends.voices for name in (voice.id, *voice.aliases)}
    recognizers = {name for item in backends.recognizers for name in (item.id, *item.aliases)}
    return Served(
        voices=frozenset(voices | set(backends.vocoder.voice_aliases)),
        recognizers=frozenset(recognizers | set(backends.recognition.model_aliases)),
    )


def _token(headers: Sequence[tuple[bytes, bytes]], subprotocols: Sequence[str]) -> str:
    for offered in subprotocols:
        if offered.startswith(KEY_SUBPROTOCOL):
            return offered.removeprefix(KEY_SUBPROTOCOL)
    return token_of(headers)
