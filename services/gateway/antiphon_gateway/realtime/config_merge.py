"""How a session's configuration begins, changes and is shown: deep merges, all or nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon_gateway.realtime import codec
from antiphon_gateway.realtime.config import (
    Audio,
    AudioInput,
    AudioOutput,
    ServerVad,
    SessionConfig,
    SessionType,
    Transcription,
    check_consistency,
)
from antiphon_gateway.realtime.errors import ProtocolError
from antiphon_gateway.realtime.settings import RealtimeSettings

SESSION_TYPES = ("realtime", "transcription")

_REPLACED_WHOLE = {"tools", "tool_choice", "output_modalities", "truncation", "include"}
_ECHO_ONLY = {"id", "object", "expires_at"}
"""Fields of an echoed session that clients send back unchanged; they cannot be set."""
_NULLABLE = {"turn_detection", "transcription", "noise_reduction", "temperature", "speculative_ms"}
_OF_TRANSCRIPTION = {"type", "model", "audio", "include"}
_OBJECT = {"realtime": "realtime.session", "transcription": "realtime.transcription_session"}


def default_config(
    settings: RealtimeSettings, model: str, kind: SessionType = "realtime"
) -> SessionConfig:
    """What a session starts with.

    Args:
        settings: of the gateway.
        model: the language model; of a transcription session, the recogniser, or empty.
        kind: type of the session.
    """
    detection = ServerVad(silence_duration_ms=settings.silence_duration_ms)
    if kind == "transcription":
        transcription = Transcription(model=model or None)
        heard = AudioInput(transcription=transcription, turn_detection=detection)
        return SessionConfig(type="transcription", audio=Audio(input=heard))
    return SessionConfig(
        model=model,
        instructions=settings.instructions,
        max_output_tokens=settings.max_output_tokens,
        temperature=settings.temperature,
        speculative_ms=max(100, settings.speculative_ms) if settings.speculative_ms else None,
        audio_lead_ms=settings.audio_lead_ms,
        audio=Audio(
            input=AudioInput(
                transcription=Transcription() if settings.transcription else None,
                turn_detection=detection,
            ),
            output=AudioOutput(voice=settings.voice),
        ),
    )


def type_of(change: Mapping[str, Any], otherwise: SessionType) -> SessionType:
    """The session type that a configuration asks for.

    Raises:
        ProtocolError: it is none.
    """
    kind = change.get("type", otherwise)
    if kind == "realtime" or kind == "transcription":
        return kind
    raise ProtocolError(
        f"session.type must be one of {', '.join(SESSION_TYPES)}", param="session.type"
    )


def merge(
    current: SessionConfig,
    defaults: SessionConfig,
    change: Mapping[str, Any],
    own_names: Collection[str] = (),
) -> SessionConfig:
    """The configuration after a session.update.

    Present keys change, null clears to the default (or to null where null has a meaning), and
    one bad value changes nothing.

    Args:
        current: configuration in force.
        defaults: what null returns to.
        change: the event's ``session``.
        own_names: further names of the session's model, which may be repeated as well.

    Raises:
        ProtocolError: naming the field.
    """
    if type_of(change, current.type) != current.type:
        raise ProtocolError(
            f"session.type is {current.type!r} and cannot be changed once the session is in use; "
            "open a new session",
            code="cannot_update_session_type",
            param="session.type",
        )
    change = {key: value for key, value in change.items() if key not in _ECHO_ONLY}
    if current.transcribes_only:
        _check_transcription(change)
    else:
        _check_model(current, change, own_names)
    tree = _merged(msgspec.to_builtins(current), msgspec.to_builtins(defaults), change)
    tree["model"] = current.model
    _name_voice(tree)
    merged = codec.convert(tree, SessionConfig, "session")
    check_consistency(merged, "session")
    return _without_inert(merged)


def echo(config: SessionConfig, session_id: str, expires_at: int) -> dict[str, Any]:
    """The full effective configuration as session.created and session.updated send it."""
    tree = msgspec.to_builtins(config)
    _omit_unset(tree)
    head = {"id": session_id, "object": _OBJECT[config.type], "expires_at": expires_at}
    if config.transcribes_only:
        audio = {"input": tree["audio"]["input"]}
        return {"type": config.type, "audio": audio, "include": config.include, **head}
    voice = tree["audio"]["output"]["voice"]
    tree["audio"]["output"]["voice"] = voice or None
    return {**tree, **head}


def _omit_unset(tree: dict[str, Any]) -> None:
    """Pipecat takes neither a transcription model of null nor fields that it does not know."""
    transcription = tree["audio"]["input"]["transcription"]
    if transcription is not None:
        for name in ("model", "keywords", "languages", "delay"):
            if transcription[name] is None:
                del transcription[name]


def _check_model(
    current: SessionConfig, change: Mapping[str, Any], own_names: Collection[str]
) -> None:
    model = change.get("model")
    if model is not None and model != current.model and model not in own_names:
        raise ProtocolError(
            f"session.model is {current.model!r} and cannot be changed; open a new session",
            code="cannot_update_model",
            param="session.model",
        )


def _check_transcription(change: Mapping[str, Any]) -> None:
    strange = sorted(set(change) - _OF_TRANSCRIPTION)
    audio = change.get("audio")
    if isinstance(audio, Mapping) and "output" in audio:
        strange.append("audio.output")
    if strange:
        raise ProtocolError(
            f"session.{strange[0]} is not part of a transcription session, which has audio.input "
            "and include",
            code="unknown_parameter",
            param=f"session.{strange[0]}",
        )


def _without_inert(config: SessionConfig) -> SessionConfig:
    """Fields that are accepted for compatibility and have no effect are echoed as null."""
    heard = config.audio.input
    transcription = heard.transcription
    if transcription is not None:
        transcription = replace(transcription, delay=None)
    heard = replace(heard, noise_reduction=None, transcription=transcription)
    audio = replace(config.audio, input=heard)
    return replace(config, audio=audio, prompt=None, tracing=None)


def _merged(
    current: dict[str, Any], defaults: Mapping[str, Any], change: Mapping[str, Any]
) -> dict[str, Any]:
    result = dict(current)
    for key, value in change.items():
        before = current.get(key)
        if value is None:
            result[key] = None if key in _NULLABLE else defaults.get(key)
        elif not isinstance(value, Mapping) or key in _REPLACED_WHOLE:
            result[key] = value
        elif not isinstance(before, dict) or _is_other_kind(before, value):
            result[key] = {name: inner for name, inner in value.items() if inner is not None}
        else:
            inner_defaults = defaults.get(key)
            result[key] = _merged(
                before, inner_defaults if isinstance(inner_defaults, Mapping) else {}, value
            )
            if not isinstance(inner_defaults, Mapping):
                result[key] = {k: v for k, v in result[key].items() if v is not None}
    return result


def _is_other_kind(before: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    """Whether a tagged object is replaced by one of another type."""
    return "type" in before and "type" in value and before["type"] != value["type"]


def _name_voice(tree: dict[str, Any]) -> None:
    audio = tree.get("audio")
    output = audio.get("output") if isinstance(audio, dict) else None
    if isinstance(output, dict) and isinstance(output.get("voice"), Mapping):
        output["voice"] = output["voice"].get("id")
