"""Messages between the recognition front and its worker process.

Audio travels as the caller's bytes; positions are milliseconds from the first sample of the
stream. ``stream`` and ``job`` are numbers that the front never reuses.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from antiphon_vocoder.recognition.gauges import WorkerGauges
from antiphon_vocoder.recognition.speakers.options import SpeakerOptions

SHORTEST_PAUSE_MS = 160
"""The recogniser hears so much silence behind the last voice: an earlier start would hear less."""

DETECTORS = ("auto", "silero", "energy")
"""Names of voice-activity detectors; auto is silero, else energy."""


class TurnOptions(msgspec.Struct, frozen=True):
    """How turns are found."""

    manual: bool = False
    """Only flushes end utterances."""
    threshold: float = 0.5
    silence_ms: int = 500
    prefix_ms: int = 300
    detector: str = "auto"
    """silero, energy or auto."""
    judged: bool = False
    """``silence_ms`` makes a pause that a judge accepts or refuses as the end."""
    end_threshold: float = 0.5
    """Probability from which the judge's answer is the end."""
    longest_silence_ms: int = 4000
    """Silence that ends a judged turn whatever the judge says."""


class DecodeOptions(msgspec.Struct, frozen=True):
    """How an utterance becomes text."""

    language: str = ""
    """ISO 639-1; empty detects."""
    translate: bool = False
    words: bool = False
    prompt: str = ""
    temperature: float | None = None
    """None is 0 with fallback to higher ones."""
    logprobs: bool = False
    """Of every text token."""
    keywords: list[str] = []
    """What the speech may hold, the most wanted first."""


class StreamOptions(msgspec.Struct, frozen=True):
    """A live stream."""

    encoding: str
    """pcm16, pcmu or pcma."""
    rate: int
    """Hz."""
    turns: TurnOptions
    decode: DecodeOptions
    partials: bool
    transcribe: bool
    speakers: SpeakerOptions | None = None
    """None: nobody asks who speaks."""


class Start(msgspec.Struct, frozen=True, tag=True):
    """First message to a worker."""

    model_dir: str
    """Empty: the packaged model."""
    compute_type: str
    device: str
    dtype: Literal["auto", "fp32", "fp16", "bf16"]
    lanes: int
    threads: int
    beam_size: int
    speculative_ms: int
    partial_interval_ms: int
    max_utterance_seconds: float
    max_file_seconds: float
    turn_model: str
    """ONNX end-of-turn model; empty: wording and voice."""
    speaker_model: str = ""
    """ONNX speaker model; empty: the packaged one, where it is installed."""
    same_voice: float | None = None
    """Cosine from which two voices are one; None: the speaker model's own."""


class OpenStream(msgspec.Struct, frozen=True, tag=True):
    """A live stream begins; answered by StreamReady or StreamFailed."""

    stream: int
    options: StreamOptions


class Audio(msgspec.Struct, frozen=True, tag=True):
    """Next bytes of a live stream, any cut."""

    stream: int
    data: bytes


class Flush(msgspec.Struct, frozen=True, tag=True):
    """End the present utterance here."""

    stream: int
    tag_text: str


class Reset(msgspec.Struct, frozen=True, tag=True):
    """Drop the present utterance."""

    stream: int


class SetTurns(msgspec.Struct, frozen=True, tag=True):
    """Turn detection from here on."""

    stream: int
    turns: TurnOptions


class EndInput(msgspec.Struct, frozen=True, tag=True):
    """No audio follows; answered by StreamFinished after the last final."""

    stream: int


class CloseStream(msgspec.Struct, frozen=True, tag=True):
    """Forget the stream; nothing more is sent about it."""

    stream: int


class RecognizeFile(msgspec.Struct, frozen=True, tag=True):
    """Recognise a spooled file; the front deletes it after the job."""

    job: int
    path: str
    encoding: str
    """pcm16, pcmu, pcma without a header, or empty to sniff the container."""
    rate: int
    """Hz, of an encoding without a header."""
    decode: DecodeOptions
    speakers: SpeakerOptions | None = None
    """None: nobody asks who speaks."""


class CancelFile(msgspec.Struct, frozen=True, tag=True):
    """Forget the job."""

    job: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End the process."""


class WordTiming(msgspec.Struct, frozen=True):
    """A recognised word."""

    text: str
    start_ms: int
    end_ms: int
    probability: float


class Token(msgspec.Struct, frozen=True):
    """A text token; a character may be spread over several."""

    text: bytes
    logprob: float


class Segment(msgspec.Struct, frozen=True):
    """A run of recognised text with the measures of its pass."""

    text: str
    start_ms: int
    end_ms: int
    token_ids: list[int]
    temperature: float
    average_logprob: float
    compression_ratio: float
    no_speech_probability: float
    words: list[WordTiming]
    tokens: list[Token] = []
    """The text ones among ``token_ids``, where asked for."""
    speaker: str = ""
    """Known speaker or letter, where asked for; empty where no voice could be told."""


class RecognizerInfo(msgspec.Struct, frozen=True):
    """What the loaded recogniser can do."""

    languages: list[str]
    """ISO 639-1 codes."""
    translates: bool
    diarizes: bool = False
    """Whether there is a speaker model."""


class Failure(msgspec.Struct, frozen=True):
    """A typed error: names of the gRPC code and of the ErrorReason."""

    code: str
    reason: str
    message: str
    metadata: dict[str, str] = {}


class WorkerReady(msgspec.Struct, frozen=True, tag=True):
    """Models are loaded."""

    recognizer: RecognizerInfo
    detector: str
    """What ``auto`` resolves to."""
    load_seconds: float


class WorkerFailed(msgspec.Struct, frozen=True, tag=True):
    """Models cannot be loaded; the process ends."""

    failure: Failure


class StreamReady(msgspec.Struct, frozen=True, tag=True):
    """The stream takes audio."""

    stream: int
    detector: str
    detector_fallback: bool
    turn_judge: str


class StreamFailed(msgspec.Struct, frozen=True, tag=True):
    """The stream is over; nothing more is sent about it."""

    stream: int
    failure: Failure


class Consumed(msgspec.Struct, frozen=True, tag=True):
    """So many bytes of the stream were taken since the last such message."""

    stream: int
    byte_count: int


class Started(msgspec.Struct, frozen=True, tag=True):
    """Speech began."""

    stream: int
    utterance: int
    at_ms: int


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """Speech ended."""

    stream: int
    utterance: int
    at_ms: int
    end_probability: float | None = None
    """The judge's answer about the last pause."""
    forced: bool = False
    """The pause was refused, and the longest silence or the end of input ended the turn."""


class Partial(msgspec.Struct, frozen=True, tag=True):
    """Text so far of an open utterance."""

    stream: int
    utterance: int
    text: str
    stable_characters: int


class Final(msgspec.Struct, frozen=True, tag=True):
    """Text of a closed utterance."""

    stream: int
    utterance: int
    text: str
    start_ms: int
    end_ms: int
    language: str
    segments: list[Segment]
    tag_text: str
    confidence: float
    """Geometric mean of the tokens' probabilities; 0 without text."""
    no_speech_probability: float
    delay_ms: float
    """From the end of the utterance's input to this message."""


class UtteranceFailed(msgspec.Struct, frozen=True, tag=True):
    """In place of a final."""

    stream: int
    utterance: int
    failure: Failure
    tag_text: str


class StreamFinished(msgspec.Struct, frozen=True, tag=True):
    """All input is answered."""

    stream: int
    audio_seconds: float
    utterances: int


class FileSegment(msgspec.Struct, frozen=True, tag=True):
    """Next segment of a file."""

    job: int
    segment: Segment


class FileFinished(msgspec.Struct, frozen=True, tag=True):
    """The file is recognised."""

    job: int
    text: str
    language: str
    audio_seconds: float
    elapsed_seconds: float


class FileFailed(msgspec.Struct, frozen=True, tag=True):
    """The file cannot be recognised."""

    job: int
    failure: Failure


StreamCommand = Audio | Flush | Reset | SetTurns | EndInput
"""What a stream is told after it was opened."""

ToWorker = (
    Start
    | OpenStream
    | Audio
    | Flush
    | Reset
    | SetTurns
    | EndInput
    | CloseStream
    | RecognizeFile
    | CancelFile
    | Stop
)
ToFront = (
    WorkerReady
    | WorkerFailed
    | WorkerGauges
    | StreamReady
    | StreamFailed
    | Consumed
    | Started
    | Stopped
    | Partial
    | Final
    | UtteranceFailed
    | StreamFinished
    | FileSegment
    | FileFinished
    | FileFailed
)
