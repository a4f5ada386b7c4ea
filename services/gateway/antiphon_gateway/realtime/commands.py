"""What the session asks its connection to do."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_gateway.domain.generation import ChatInput, Sampling
from antiphon_gateway.domain.recognition import RecognitionConfig, TurnDetection
from antiphon_gateway.domain.speech import AudioFormat, SpeechConfig
from antiphon_gateway.realtime.events import ServerEvent


@dataclass(frozen=True, slots=True)
class AudioTag:
    """Marks a queued event as audio: it is dropped when its lane's generation has moved on."""

    response_id: str
    item_id: str
    lane: str
    generation: int
    sample_count: int
    byte_count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Send:
    """Queue an event for the client; events leave in order."""

    event: ServerEvent
    audio: AudioTag | None = None


@dataclass(frozen=True, slots=True)
class SilenceLane:
    """Drop queued audio of a lane that is older than the generation."""

    lane: str
    generation: int


@dataclass(frozen=True, slots=True)
class OpenRecognizer:
    """Replace the recogniser stream; events of streams before this epoch are stale."""

    epoch: int
    config: RecognitionConfig
    replay: bytes
    """Audio that the new stream hears first."""
    delay: float = 0.0
    """Seconds to wait before it is opened."""


@dataclass(frozen=True, slots=True)
class RecognizeAudio:
    """Pass audio to the recogniser."""

    data: bytes


@dataclass(frozen=True, slots=True)
class FlushRecognizer:
    """End the present utterance; its final carries the tag."""

    tag: str


@dataclass(frozen=True, slots=True)
class TuneRecognizer:
    """Change turn detection of the open stream."""

    detection: TurnDetection


@dataclass(frozen=True, slots=True)
class TranscribeItem:
    """Recognise the audio of an item that the client created."""

    item_id: str
    config: RecognitionConfig
    audio: bytes


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """Everything one reply runs on: nothing in it changes while it runs."""

    response_id: str
    model: str
    chat: ChatInput
    sampling: Sampling
    max_tokens: int | None
    speech: SpeechConfig | None
    """None for a written reply."""
    output_format: AudioFormat


@dataclass(frozen=True, slots=True)
class StartResponse:
    """Run a reply; a second start of the same response is a retry with a shorter prompt."""

    plan: ResponsePlan


@dataclass(frozen=True, slots=True)
class StopResponse:
    """End a reply's backend calls; nothing it reports later counts."""

    response_id: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close the socket after the queued events have been sent."""

    code: int
    reason: str


Command = (
    Send
    | SilenceLane
    | OpenRecognizer
    | RecognizeAudio
    | FlushRecognizer
    | TuneRecognizer
    | TranscribeItem
    | StartResponse
    | StopResponse
    | Close
)
