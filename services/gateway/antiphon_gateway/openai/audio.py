"""Wire models of the audio endpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType


class VoiceReference(Struct):
    """A voice by id."""

    id: str


class SpeechRequest(Struct):
    """POST /v1/audio/speech; null is the same as absent."""

    input: str
    model: str | None = None
    voice: str | VoiceReference | None = None
    instructions: Annotated[str, Meta(max_length=4096)] | None = None
    language: Annotated[str, Meta(max_length=64)] | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = None
    sample_rate: Annotated[int, Meta(ge=8000, le=48000)] | None = None
    speed: Annotated[float, Meta(ge=0.25, le=4)] | None = None
    stream_format: Literal["audio", "sse"] | None = None


class DurationUsage(Struct):
    """Cost by length of the audio."""

    seconds: float
    type: Literal["duration"] = "duration"


class SpeechDelta(Struct):
    """The next bytes of the file."""

    audio: str
    """Base64."""
    type: Literal["speech.audio.delta"] = "speech.audio.delta"


class SpeechDone(Struct):
    """The end of the file."""

    usage: DurationUsage
    type: Literal["speech.audio.done"] = "speech.audio.done"


TranscriptionFormat = Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"]

MAX_KNOWN_SPEAKERS = 4
MAX_REFERENCE_BYTES = 4 * 1024 * 1024
"""Of the sample of one known speaker."""
MAX_REFERENCE_CHARACTERS = (MAX_REFERENCE_BYTES + 2) // 3 * 4 + 1024
"""Of such a sample as a data URL: base64 and a head."""


class TranscriptionForm(Struct):
    """Fields of POST /v1/audio/transcriptions and /translations beside the file."""

    model: str = ""
    language: Annotated[str, Meta(max_length=64)] = ""
    prompt: Annotated[str, Meta(max_length=1000)] = ""
    response_format: TranscriptionFormat = "json"
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    timestamp_granularities: list[Literal["word", "segment"]] = []
    stream: bool = False
    include: list[Literal["logprobs"]] = []
    keywords: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=100)]], Meta(max_length=100)
    ] = []
    languages: Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=16)] = []
    known_speaker_names: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(max_length=MAX_KNOWN_SPEAKERS)
    ] = []
    known_speaker_references: Annotated[list[str], Meta(max_length=MAX_KNOWN_SPEAKERS)] = []
    """Data URLs, one for each name."""


class TokenLogprob(Struct):
    """A token of the transcript; bytes are exact where a character is spread over several."""

    token: str
    bytes: list[int]
    logprob: float


class Transcription(Struct):
    """The json response."""

    text: str
    usage: DurationUsage
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class Word(Struct):
    """A word with its times in seconds."""

    word: str
    start: float
    end: float


class Segment(Struct):
    """A segment with its times in seconds and the recogniser's measures."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class VerboseTranscription(Struct):
    """The verbose_json response."""

    task: Literal["transcribe", "translate"]
    language: str
    duration: float
    text: str
    usage: DurationUsage
    segments: list[Segment] | UnsetType = UNSET
    words: list[Word] | UnsetType = UNSET


class DiarizedSegment(Struct):
    """A segment with its times in seconds and its speaker; in a stream, an event."""

    id: str
    start: float
    end: float
    text: str
    speaker: str
    """A known speaker's name, or A, B, C in order; empty where no voice could be told."""
    type: Literal["transcript.text.segment"] = "transcript.text.segment"


class DiarizedTranscription(Struct):
    """The diarized_json response."""

    duration: float
    text: str
    segments: list[DiarizedSegment]
    usage: DurationUsage
    task: Literal["transcribe"] = "transcribe"


class TranscriptDelta(Struct):
    """The next piece of the transcript."""

    delta: str
    type: Literal["transcript.text.delta"] = "transcript.text.delta"
    segment_id: str | UnsetType = UNSET
    """Of the segment that the piece belongs to, where segments are sent too."""
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class TranscriptDone(Struct):
    """The whole transcript."""

    text: str
    usage: DurationUsage
    type: Literal["transcript.text.done"] = "transcript.text.done"
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class AudioVoice(Struct):
    """A voice in the list of voices."""

    id: str
    created_at: int
    name: str
    type: str
    language: str
    is_default: bool
    aliases: list[str]
    object: Literal["audio.voice"] = "audio.voice"


class VoiceList(Struct):
    """GET /v1/audio/voices."""

    data: list[AudioVoice]
    object: Literal["list"] = "list"
    has_more: bool = False
