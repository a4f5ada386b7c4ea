"""What the session asks its connection to do."""

from __future__ import annotations

from msgspec import Struct

from antiphon_gateway.domain.generation import ChatInput, Sampling
from antiphon_gateway.domain.recognition import RecognitionConfig, TurnDetection
from antiphon_gateway.domain.speech import AudioFormat, SpeechConfig
from antiphon_gateway.realtime.events import ServerEvent


class AudioTag(Struct, frozen=True):
    """Marks a queued event as audio: it is dropped when its lane's generation has moved on."""

    response_id: str
    item_id: str
    lane: str
    generation: int
    sample_count: int
    byte_count: int
    seconds: float


class Send(Struct, frozen=True):
    """Queue an event for the client; events leave in order."""

    event: ServerEvent
    audio: AudioTag | None = None


class SilenceLane(Struct, frozen=True):
    """Drop queued audio of a lane that is older than the generation."""

    lane: str
    generation: int


class OpenRecognizer(Struct, frozen=True):
    """Replace the recogniser stream; events of streams before this epoch are stale."""

    epoch: int
    config: RecognitionConfig
    replay: bytes
    """Audio that the new stream hears first."""
    delay: float = 0.0
    """Seconds to wait before it is opened."""


class RecognizeAudio(Struct, frozen=True):
    """Pass audio to the recogniser."""

    data: bytes


class FlushRecognizer(Struct, frozen=True):
    """End the present utterance; its final carries the tag."""

    tag: str


class TuneRecognizer(Struct, frozen=True):
    """Change turn detection of the open stream."""

    detection: TurnDetection


class TranscribeItem(Struct, frozen=True):
    """Recognise the audio of an item that the client created."""

    item_id: str
    config: RecognitionConfig
    audio: bytes


class ResponsePlan(Struct, frozen=True):
    """Everything one reply runs on: nothing in it changes while it runs."""

    response_id: str
    model: str
    chat: ChatInput
    sampling: Sampling
    max_tokens: int | None
    speech: SpeechConfig | None
    """None for a written reply."""
    output_format: AudioFormat
    lane: str = ""
    """Queue of its audio; the conversation's responses share one."""
    audio_lead: float = 10.0
    """Seconds that its audio may be ahead of the estimated playback."""
    held: bool = False
    """Nothing past its first audio is made before it is released."""


class StartResponse(Struct, frozen=True):
    """Run a reply; a second start of the same response is a retry with a shorter prompt."""

    plan: ResponsePlan


class ReleaseResponse(Struct, frozen=True):
    """A held reply is wanted: it goes on like any other."""

    response_id: str


class Summarize(Struct, frozen=True):
    """Make a summary of old conversation, behind everything else."""

    number: int
    model: str
    chat: ChatInput
    max_tokens: int


class PreparePhrase(Struct, frozen=True):
    """Make the audio of an acknowledgement phrase, or take it from the cache."""

    text: str
    speech: SpeechConfig


class ReportRateLimits(Struct, frozen=True):
    """Say what is left of the limits."""


class CountSpeculation(Struct, frozen=True):
    """A reply that was prepared early has been used or dropped, after so many tokens."""

    outcome: str
    token_count: int


class CountTurn(Struct, frozen=True):
    """A turn of the user ended; ``detection`` names who decided it."""

    detection: str


class CountFallback(Struct, frozen=True):
    """Something less than asked for was done."""

    component: str
    reason: str


class StopResponse(Struct, frozen=True):
    """End a reply's backend calls; nothing it reports later counts."""

    response_id: str


class Close(Struct, frozen=True):
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
    | ReleaseResponse
    | Summarize
    | PreparePhrase
    | ReportRateLimits
    | CountSpeculation
    | CountTurn
    | CountFallback
    | StopResponse
    | Close
)
