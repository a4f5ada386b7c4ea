"""Speech recognition and turn detection: times are milliseconds from the first sample sent."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from antiphon_core.errors import AntiphonError

from antiphon_gateway.domain.speech import AudioFormat


class TurnMode(StrEnum):
    """Who decides where turns begin and end."""

    NONE = "none"
    SERVER_VAD = "server_vad"
    SEMANTIC = "semantic"


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """How turns are found; None takes the service's default."""

    mode: TurnMode = TurnMode.SERVER_VAD
    threshold: float | None = None
    silence_ms: int | None = None
    prefix_ms: int | None = None
    detector: str = ""


@dataclass(frozen=True, slots=True)
class RecognitionConfig:
    """Configuration of live or file recognition."""

    model: str = ""
    format: AudioFormat | None = None
    """Format of live input; None sniffs the container of a file."""
    language: str = ""
    translate: bool = False
    """English text instead of text in the language spoken."""
    turn_detection: TurnDetection | None = None
    partials: bool = False
    words: bool = False
    skip_transcription: bool = False
    prompt: str = ""
    temperature: float | None = None
    timeout: float | None = None
    """Seconds until the call's deadline; None sets none."""


@dataclass(frozen=True, slots=True)
class RecognitionReady:
    """Ready for audio; always the first event of live recognition."""

    model: str
    detector: str
    detector_fallback: bool


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """Speech began; the start includes the configured prefix."""

    utterance: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """Speech ended; the silence that proved it is not included."""

    utterance: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class PartialTranscript:
    """Text of an utterance that goes on; replaces the former partial."""

    utterance: int
    text: str
    stable_characters: int


@dataclass(frozen=True, slots=True)
class Word:
    """A recognised word."""

    text: str
    start_ms: int
    end_ms: int
    probability: float


@dataclass(frozen=True, slots=True)
class TranscriptSegment:
    """A segment of recognised text with the recogniser's measures."""

    text: str
    start_ms: int
    end_ms: int
    token_ids: tuple[int, ...] = ()
    temperature: float = 0.0
    average_logprob: float = 0.0
    compression_ratio: float = 0.0
    no_speech_probability: float = 0.0
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class FinalTranscript:
    """Text of an utterance that is over; empty for silence, noise and music."""

    utterance: int
    text: str
    start_ms: int
    end_ms: int
    language: str = ""
    segments: tuple[TranscriptSegment, ...] = ()
    tag: str = ""
    """Tag of the flush that ended it."""


@dataclass(frozen=True, slots=True)
class UtteranceError:
    """One utterance could not be recognised; the stream goes on."""

    utterance: int
    error: AntiphonError
    tag: str = ""


@dataclass(frozen=True, slots=True)
class RecognitionFinished:
    """The end of live recognition."""

    audio_seconds: float
    utterance_count: int


RecognitionEvent = (
    RecognitionReady
    | SpeechStarted
    | SpeechStopped
    | PartialTranscript
    | FinalTranscript
    | UtteranceError
    | RecognitionFinished
)


@dataclass(frozen=True, slots=True)
class FileFinished:
    """The end of file recognition."""

    text: str
    language: str
    audio_seconds: float
    work_seconds: float


FileEvent = TranscriptSegment | FileFinished


@dataclass(frozen=True, slots=True)
class Recognizer:
    """A recogniser that can be named in a RecognitionConfig."""

    id: str
    languages: tuple[str, ...]
    translates: bool
    aliases: tuple[str, ...] = ()
