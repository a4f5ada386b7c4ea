"""Session configuration: typed, merged deeply, all or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from antiphon_gateway.domain.speech import AudioFormat
from antiphon_gateway.realtime import codec
from antiphon_gateway.realtime.errors import ProtocolError
from antiphon_gateway.realtime.settings import RealtimeSettings

PCM_RATES = (8000, 16000, 24000, 48000)
SILENCE_OF_EAGERNESS = {"low": 1200, "medium": 700, "auto": 700, "high": 400}
"""Silence in ms that ends a turn under semantic_vad."""

_REPLACED_WHOLE = {"tools", "tool_choice", "output_modalities", "truncation", "include"}
_ECHO_ONLY = {"id", "object", "expires_at"}
"""Fields of an echoed session that clients send back unchanged; they cannot be set."""


class Pcm(Struct, frozen=True, tag="audio/pcm", tag_field="type", forbid_unknown_fields=True):
    """Signed 16-bit little-endian mono samples."""

    rate: int = 24000

    def __post_init__(self) -> None:
        if self.rate not in PCM_RATES:
            raise ValueError(f"rate must be one of {', '.join(map(str, PCM_RATES))}")


class Pcmu(Struct, frozen=True, tag="audio/pcmu", tag_field="type", forbid_unknown_fields=True):
    """G.711 mu-law, 8 kHz, one byte a sample."""


class Pcma(Struct, frozen=True, tag="audio/pcma", tag_field="type", forbid_unknown_fields=True):
    """G.711 A-law, 8 kHz, one byte a sample."""


WireFormat = Pcm | Pcmu | Pcma


def sample_rate(form: WireFormat) -> int:
    """Samples a second."""
    return form.rate if isinstance(form, Pcm) else 8000


def sample_bytes(form: WireFormat) -> int:
    """Bytes a sample."""
    return 2 if isinstance(form, Pcm) else 1


def backend_format(form: WireFormat) -> AudioFormat:
    """The format as backends name it."""
    encoding = {Pcm: "pcm16", Pcmu: "pcmu", Pcma: "pcma"}[type(form)]
    return AudioFormat(encoding, sample_rate(form))


class ServerVad(
    Struct, frozen=True, tag="server_vad", tag_field="type", forbid_unknown_fields=True
):
    """Turns end after a length of silence."""

    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, Meta(ge=0, le=5000)] = 300
    silence_duration_ms: Annotated[int, Meta(ge=100, le=10_000)] = 500
    idle_timeout_ms: None = None
    create_response: bool = True
    interrupt_response: bool = True


class SemanticVad(
    Struct, frozen=True, tag="semantic_vad", tag_field="type", forbid_unknown_fields=True
):
    """Turns end when the speaker seems to have finished; here by a silence that eagerness sets."""

    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True


TurnDetection = ServerVad | SemanticVad


class Transcription(Struct, frozen=True, forbid_unknown_fields=True):
    """How input transcripts are made."""

    model: str | None = None
    language: str | None = None
    prompt: Annotated[str, Meta(max_length=1000)] | None = None


class NoiseReduction(Struct, frozen=True, forbid_unknown_fields=True):
    """Accepted and echoed as null: no filter is served."""

    type: Literal["near_field", "far_field"] | None = None
    strength: float | None = None


class AudioInput(Struct, frozen=True, forbid_unknown_fields=True):
    """What comes in."""

    format: WireFormat = Pcm()
    transcription: Transcription | None = None
    noise_reduction: NoiseReduction | None = None
    turn_detection: TurnDetection | None = ServerVad()


class AudioOutput(Struct, frozen=True, forbid_unknown_fields=True):
    """What goes out."""

    format: WireFormat = Pcm()
    voice: str = ""
    speed: Annotated[float, Meta(ge=0.25, le=1.5)] = 1.0


class Audio(Struct, frozen=True, forbid_unknown_fields=True):
    """Both directions."""

    input: AudioInput = AudioInput()
    output: AudioOutput = AudioOutput()


class FunctionTool(Struct, frozen=True, forbid_unknown_fields=True):
    """A function offered to the model."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
    type: Literal["function"] = "function"
    description: str | None = None
    parameters: dict[str, Any] | None = None


class NamedTool(Struct, frozen=True, tag="function", tag_field="type"):
    """Exactly one call of this function."""

    name: str


ToolChoice = Literal["auto", "none", "required"] | NamedTool


class TokenLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of the prompt."""

    post_instructions: Annotated[int, Meta(ge=0)] | None = None


class RetentionRatio(Struct, frozen=True, tag="retention_ratio", tag_field="type"):
    """Keep this share of the history when it has to shrink."""

    retention_ratio: Annotated[float, Meta(gt=0, le=1)] = 0.8
    token_limits: TokenLimits | None = None


Truncation = Literal["auto", "disabled"] | RetentionRatio
OutputLimit = Annotated[int, Meta(ge=1)] | Literal["inf"]


class SessionConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The full effective configuration of a session; responses run on a snapshot of it."""

    type: Literal["realtime"] = "realtime"
    model: str = ""
    instructions: str = ""
    output_modalities: list[Literal["text", "audio"]] = msgspec.field(
        default_factory=lambda: ["audio"]
    )
    audio: Audio = Audio()
    tools: Annotated[list[FunctionTool], Meta(max_length=128)] = []
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: OutputLimit = "inf"
    truncation: Truncation = "auto"
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    include: list[Literal["item.input_audio_transcription.logprobs"]] | None = None
    reasoning: dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    tracing: Any = None


def check_consistency(config: SessionConfig, path: str) -> None:
    """Refuses values that do not fit together.

    Args:
        path: where the values stand in the event, such as ``session``.

    Raises:
        ProtocolError: naming the field and the allowed values.
    """
    if config.output_modalities not in (["audio"], ["text"]):
        raise ProtocolError(
            f'{path}.output_modalities must be ["audio"] or ["text"]',
            param=f"{path}.output_modalities",
        )
    choice = config.tool_choice
    names = [tool.name for tool in config.tools]
    if isinstance(choice, NamedTool) and choice.name not in names:
        raise ProtocolError(
            f"{path}.tool_choice names {choice.name!r}, which is not in tools: "
            f"{', '.join(names) or 'none'}",
            param=f"{path}.tool_choice",
        )


def default_config(settings: RealtimeSettings, model: str) -> SessionConfig:
    """What a session starts with."""
    return SessionConfig(
        model=model,
        instructions=settings.instructions,
        max_output_tokens=settings.max_output_tokens,
        temperature=settings.temperature,
        audio=Audio(
            input=AudioInput(
                transcription=Transcription() if settings.transcription else None,
                turn_detection=ServerVad(silence_duration_ms=settings.silence_duration_ms),
            ),
            output=AudioOutput(voice=settings.voice),
        ),
    )


def merge(
    current: SessionConfig, defaults: SessionConfig, change: Mapping[str, Any]
) -> SessionConfig:
    """The configuration after a session.update.

    Present keys change, null clears to the default (or to null where null has a meaning), and
    one bad value changes nothing.

    Args:
        current: configuration in force.
        defaults: what null returns to.
        change: the event's ``session``.

    Raises:
        ProtocolError: naming the field.
    """
    kind = change.get("type", "realtime")
    if kind != "realtime":
        raise ProtocolError(
            "session.type must be 'realtime'; transcription sessions are not served",
            param="session.type",
        )
    model = change.get("model")
    if model is not None and model != current.model:
        raise ProtocolError(
            f"session.model is {current.model!r} and cannot be changed; open a new session",
            code="cannot_update_model",
            param="session.model",
        )
    change = {key: value for key, value in change.items() if key not in _ECHO_ONLY}
    tree = _merged(msgspec.to_builtins(current), msgspec.to_builtins(defaults), change)
    tree["model"] = current.model
    _name_voice(tree)
    merged = codec.convert(tree, SessionConfig, "session")
    check_consistency(merged, "session")
    return _without_inert(merged)


def _without_inert(config: SessionConfig) -> SessionConfig:
    """Fields that are accepted for compatibility and have no effect are echoed as null."""
    audio_input = msgspec.structs.replace(config.audio.input, noise_reduction=None)
    return msgspec.structs.replace(
        config,
        audio=msgspec.structs.replace(config.audio, input=audio_input),
        include=None,
        reasoning=None,
        prompt=None,
        tracing=None,
    )


_NULLABLE = {"turn_detection", "transcription", "noise_reduction", "temperature"}


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


def echo(config: SessionConfig, session_id: str, expires_at: int) -> dict[str, Any]:
    """The full effective configuration as session.created and session.updated send it."""
    tree = msgspec.to_builtins(config)
    voice = tree["audio"]["output"]["voice"]
    tree["audio"]["output"]["voice"] = voice or None
    return {
        **tree,
        "id": session_id,
        "object": "realtime.session",
        "expires_at": expires_at,
    }


def silence_ms(detection: TurnDetection) -> int:
    """Silence that ends a turn."""
    if isinstance(detection, SemanticVad):
        return SILENCE_OF_EAGERNESS[detection.eagerness]
    return detection.silence_duration_ms
