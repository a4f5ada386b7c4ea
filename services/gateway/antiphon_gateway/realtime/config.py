"""Session configuration as typed, frozen values."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from antiphon_gateway.realtime.errors import ProtocolError
from antiphon_gateway.realtime.formats import Pcm, WireFormat

SEGMENT_EVENT = "conversation.item.input_audio_transcription.segment"
DIARIZING_MODEL = "gpt-4o-transcribe-diarize"
"""The recogniser's name by which OpenAI's clients ask who speaks, and opt in to its event."""

OPTIONAL_EVENTS = (
    "conversation.item.created",
    SEGMENT_EVENT,
    "output_audio_buffer.started",
    "output_audio_buffer.stopped",
    "output_audio_buffer.cleared",
)
"""Events that are sent only to a client that names them in ``optional_events``."""

MAX_PHRASES = 8


class ServerVad(
    Struct, frozen=True, tag="server_vad", tag_field="type", forbid_unknown_fields=True
):
    """Turns end after a length of silence."""

    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, Meta(ge=0, le=5000)] = 300
    silence_duration_ms: Annotated[int, Meta(ge=100, le=10_000)] = 500
    idle_timeout_ms: Annotated[int, Meta(ge=1000, le=300_000)] | None = None
    """Silence of the user after a reply has been played that makes the model speak again."""
    create_response: bool = True
    interrupt_response: bool = True


class SemanticVad(
    Struct, frozen=True, tag="semantic_vad", tag_field="type", forbid_unknown_fields=True
):
    """Turns end at a pause in which the recogniser judges that the speaker has finished."""

    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True


TurnDetection = ServerVad | SemanticVad


class Transcription(Struct, frozen=True, forbid_unknown_fields=True):
    """How input transcripts are made."""

    model: str | None = None
    language: str | None = None
    prompt: Annotated[str, Meta(max_length=1000)] | None = None
    keywords: (
        Annotated[list[Annotated[str, Meta(min_length=1, max_length=100)]], Meta(max_length=100)]
        | None
    ) = None
    """Words and phrases that the speech may hold."""
    languages: list[str] | None = None
    """A single one counts as ``language``; several leave the choice to the recogniser."""
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None
    """Accepted and echoed as null: the recogniser decides when its text is stable."""


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
    ack_phrases: (
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=120)]], Meta(max_length=MAX_PHRASES)
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    """Extension: one of these is spoken, from cached audio, once the call is complete."""


class NamedTool(Struct, frozen=True, tag="function", tag_field="type"):
    """Exactly one call of this function."""

    name: str


ToolChoice = Literal["auto", "none", "required"] | NamedTool


class TokenLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of the prompt."""

    post_instructions: Annotated[int, Meta(ge=1)] | None = None
    """Most tokens of the conversation, beside instructions and tools."""


class RetentionRatio(Struct, frozen=True, tag="retention_ratio", tag_field="type"):
    """Keep this share of the history when it has to shrink."""

    retention_ratio: Annotated[float, Meta(gt=0, le=1)] = 0.8
    token_limits: TokenLimits | None = None


class Reasoning(Struct, frozen=True, forbid_unknown_fields=True):
    """How much the model reasons; reasoning is never spoken."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


Truncation = Literal["auto", "disabled"] | RetentionRatio
OutputLimit = Annotated[int, Meta(ge=1)] | Literal["inf"]
SessionType = Literal["realtime", "transcription"]


class SessionConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The full effective configuration of a session; responses run on a snapshot of it."""

    type: SessionType = "realtime"
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
    include: list[Literal["item.input_audio_transcription.logprobs"]] | None = None
    reasoning: Reasoning | None = None
    prompt: dict[str, Any] | None = None
    tracing: Any = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    speculative_ms: Annotated[int, Meta(ge=100, le=2000)] | None = None
    """Extension: silence in ms after which a reply is prepared, to be spoken if the turn ends."""
    audio_lead_ms: Annotated[int, Meta(ge=500, le=600_000)] = 10_000
    """Extension: how far sending runs ahead of the estimated playback."""
    optional_events: list[
        Literal[
            "conversation.item.created",
            "conversation.item.input_audio_transcription.segment",
            "output_audio_buffer.started",
            "output_audio_buffer.stopped",
            "output_audio_buffer.cleared",
        ]
    ] = []
    """Extension: further event types that this client understands."""

    @property
    def transcribes_only(self) -> bool:
        """Whether the session makes transcripts and no responses."""
        return self.type == "transcription"

    @property
    def diarizes(self) -> bool:
        """Whether the client wants to know who speaks."""
        transcription = self.audio.input.transcription
        if transcription is None:
            return False
        return transcription.model == DIARIZING_MODEL or SEGMENT_EVENT in self.optional_events

    @property
    def silence_ms(self) -> int:
        """Silence that ends a turn; 0 where something else does."""
        detection = self.audio.input.turn_detection
        return detection.silence_duration_ms if isinstance(detection, ServerVad) else 0


def check_consistency(config: SessionConfig, path: str) -> None:
    """Refuses values that do not fit together.

    Args:
        config: the whole configuration.
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
