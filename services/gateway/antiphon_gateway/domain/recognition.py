"""Speech recognition and turn detection: times are milliseconds from the first sample sent."""

from __future__ import annotations

from enum import StrEnum

from antiphon_core.errors import AntiphonError
from msgspec import Struct

from antiphon_gateway.domain.speech import AudioFormat


class TurnMode(StrEnum):
    """Who decides where turns begin and end."""

    NONE = "none"
    SERVER_VAD = "server_vad"
    SEMANTIC = "semantic"


class TurnDetection(Struct, frozen=True):
    """How turns are found; None takes the service's default."""

    mode: TurnMode = TurnMode.SERVER_VAD
    threshold: float | None = None
    silence_ms: int | None = None
    prefix_ms: int | None = None
    detector: str = ""
    eagerness: str = ""
    """Of SEMANTIC: low, medium or high; empty takes the service's default."""


class KnownSpeaker(Struct, frozen=True):
    """A speaker known by name."""

    name: str
    audio: bytes
    """A few seconds of the speaker alone: a file in any container."""


class Diarization(Struct, frozen=True):
    """How speakers are told apart."""

    known_speakers: tuple[KnownSpeaker, ...] = ()


class RecognitionConfig(Struct, frozen=True):
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
    logprobs: bool = False
    """Of every text token."""
    skip_transcription: bool = False
    prompt: str = ""
    keywords: tuple[str, ...] = ()
    """Words and phrases that the speech may hold."""
    diarization: Diarization | None = None
    """None does not tell speakers apart."""
    temperature: float | None = None
    timeout: float | None = None
    """Seconds until the call's deadline; None sets none."""


class RecognitionReady(Struct, frozen=True):
    """Ready for audio; always the first event of live recognition."""

    model: str
    detector: str
    detector_fallback: bool


class SpeechStarted(Struct, frozen=True):
    """Speech began; the start includes the configured prefix."""

    utterance: int
    at_ms: int


class SpeechStopped(Struct, frozen=True):
    """Speech ended; the silence that proved it is not included."""

    utterance: int
    at_ms: int
    forced: bool = False
    """The longest silence ended a judged turn, not the judge."""


class PartialTranscript(Struct, frozen=True):
    """Text of an utterance that goes on; replaces the former partial."""

    utterance: int
    text: str
    stable_characters: int


class Word(Struct, frozen=True):
    """A recognised word."""

    text: str
    start_ms: int
    end_ms: int
    probability: float


class Token(Struct, frozen=True):
    """A token of recognised text; a character may be spread over several."""

    text: bytes
    logprob: float


class TranscriptSegment(Struct, frozen=True):
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
    tokens: tuple[Token, ...] = ()
    """Where log-probabilities were asked for."""
    speaker: str = ""
    """Who speaks, where asked for and where the voice could be told."""


class FinalTranscript(Struct, frozen=True):
    """Text of an utterance that is over; empty for silence, noise and music."""

    utterance: int
    text: str
    start_ms: int
    end_ms: int
    language: str = ""
    segments: tuple[TranscriptSegment, ...] = ()
    tag: str = ""
    """Tag of the flush that ended it."""
    confidence: float = 0.0
    """0 to 1; 0 without text."""
    no_speech_probability: float = 0.0


class UtteranceError(Struct, frozen=True):
    """One utterance could not be recognised; the stream goes on."""

    utterance: int
    error: AntiphonError
    tag: str = ""


class RecognitionFinished(Struct, frozen=True):
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


class FileFinished(Struct, frozen=True):
    """The end of file recognition."""

    text: str
    language: str
    audio_seconds: float
    work_seconds: float


FileEvent = TranscriptSegment | FileFinished


class Recognizer(Struct, frozen=True):
    """A recogniser that can be named in a RecognitionConfig."""

    id: str
    languages: tuple[str, ...]
    translates: bool
    aliases: tuple[str, ...] = ()
    diarizes: bool = False
    """Whether it says who speaks."""
