"""Who may open a session, and with what: decided before the upgrade."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from antiphon_core.errors import InvalidArgument, NotFound, PermissionDenied, ResourceExhausted

from antiphon_gateway.clients import Backends
from antiphon_gateway.identity.credentials import token_of
from antiphon_gateway.identity.principal import Principal, use_principal
from antiphon_gateway.realtime import config_merge
from antiphon_gateway.realtime.client_secrets import Sealer, is_secret
from antiphon_gateway.realtime.config import SessionType
from antiphon_gateway.realtime.settings import RealtimeSettings
from antiphon_gateway.realtime.state import Served

if TYPE_CHECKING:
    from antiphon_gateway.app import Gateway

SUBPROTOCOL = "realtime"
KEY_SUBPROTOCOL = "openai-insecure-api-key."
VOICE_RETRY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Admission:
    """What an accepted socket starts with."""

    kind: SessionType
    model: str
    """Id of the language model; of a transcription session, the recogniser's name or empty."""
    principal: Principal
    preset: dict[str, Any] | None
    subprotocol: str | None
    context_limit: int = 0
    names: frozenset[str] = frozenset()
    """What else the client may call its model."""


async def admit(
    gateway: Gateway,
    headers: Sequence[tuple[bytes, bytes]],
    subprotocols: Sequence[str],
    model: str,
    intent: str = "",
) -> Admission:
    """Checks credentials, model and backends of an upgrade request.

    Args:
        gateway: the application.
        headers: of the request.
        subprotocols: offered; a browser puts its key there.
        model: the query's ``model``; empty is the default.
        intent: the query's ``intent``: ``transcription``, or empty for a conversation.

    Raises:
        Unauthenticated: no, unknown or expired credentials.
        PermissionDenied: a client secret of another model, or no scope ``realtime``.
        InvalidArgument: an unknown intent.
        NotFound: the model is not served.
        Unavailable: this process or a backend is not ready.
        ResourceExhausted: SLOTS_FULL, no voice is free.
    """
    settings = gateway.settings.realtime
    gateway.lifecycle.require_ready()
    token = _token(headers, subprotocols)
    kind = _kind(intent)
    preset = None
    if is_secret(token):
        claims = Sealer(settings.secret_key).open(token, time.time())
        preset = claims.session
        kind = config_merge.type_of(preset, "realtime")
        principal = claims.principal
        await gateway.identity.check_again(principal)
        if model and _resolve(gateway.backends, settings, kind, model)[0] != claims.model:
            raise PermissionDenied(
                f"the client secret is for model {claims.model!r}, not {model!r}"
            )
        model = claims.model
    else:
        principal = await gateway.identity.authenticate(token)
    principal.require("realtime")
    with use_principal(principal):
        resolved, context_limit = _resolve(gateway.backends, settings, kind, model)
    gateway.backends.recognition.pool.require_ready()
    if kind == "realtime":
        _require_voice(gateway.backends)
    subprotocol = SUBPROTOCOL if SUBPROTOCOL in subprotocols else None
    names = _names(gateway.backends, settings, resolved) | {model}
    return Admission(kind, resolved, principal, preset, subprotocol, context_limit, names)


def resolve_session(
    backends: Backends, settings: RealtimeSettings, kind: SessionType, name: str
) -> str:
    """The id of the model that a session of this type names.

    Raises:
        Unavailable: no backend of the kind is ready.
        NotFound: MODEL_NOT_FOUND.
    """
    return _resolve(backends, settings, kind, name)[0]


def served(backends: Backends, own_names: frozenset[str] = frozenset()) -> Served:
    """Names that a session may use at this moment.

    Args:
        backends: of the gateway.
        own_names: what else the session's model is called.
    """
    voices = {name for voice in backends.voices for name in (voice.id, *voice.aliases)}
    diarizes = _recognizer_names(backends)
    return Served(
        voices=frozenset(voices | set(backends.vocoder.voice_aliases)),
        recognizers=frozenset(name for name in diarizes if name),
        undiarized=frozenset(name for name, can in diarizes.items() if not can),
        own_names=own_names,
    )


def _recognizer_names(backends: Backends) -> dict[str, bool]:
    """Whether each name of a recogniser, the empty one included, is of one that says who speaks."""
    found = {"": any(item.diarizes for item in backends.recognizers[:1])}
    for item in backends.recognizers:
        found |= dict.fromkeys((item.id, *item.aliases), item.diarizes)
    aliases = backends.recognition.model_aliases
    return {alias: found.get(target, False) for alias, target in aliases.items()} | found


def _token(headers: Sequence[tuple[bytes, bytes]], subprotocols: Sequence[str]) -> str:
    for offered in subprotocols:
        if offered.startswith(KEY_SUBPROTOCOL):
            return offered.removeprefix(KEY_SUBPROTOCOL)
    return token_of(headers)


def _kind(intent: str) -> SessionType:
    if intent not in ("", *config_merge.SESSION_TYPES):
        raise InvalidArgument(
            f"intent must be one of {', '.join(config_merge.SESSION_TYPES)}, not {intent!r}",
            field="intent",
        )
    return "transcription" if intent == "transcription" else "realtime"


def _resolve(
    backends: Backends, settings: RealtimeSettings, kind: SessionType, name: str
) -> tuple[str, int]:
    if kind == "transcription":
        if name:
            backends.recognition.resolve(name)
        return name, 0
    model = backends.llm.resolve(settings.model_aliases.get(name, name))
    return model.id, model.context_limit


def _names(backends: Backends, settings: RealtimeSettings, resolved: str) -> frozenset[str]:
    """Aliases of a model: clients repeat in session.update the name that they connected with."""
    found = set()
    for alias in settings.model_aliases:
        with contextlib.suppress(NotFound):
            if _resolve(backends, settings, "realtime", alias)[0] == resolved:
                found.add(alias)
    return frozenset(found)


def _require_voice(backends: Backends) -> None:
    pool = backends.vocoder.pool
    pool.require_ready()
    slots = pool.slots
    if slots is not None and slots[0] >= slots[1]:
        raise ResourceExhausted(
            f"all {slots[1]} voices are speaking",
            reason="SLOTS_FULL",
            metadata={"limit": str(slots[1])},
            retry_after=VOICE_RETRY_SECONDS,
        )
