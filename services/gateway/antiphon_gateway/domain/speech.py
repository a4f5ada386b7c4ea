"""Speech synthesis: configuration, what goes in and what comes out."""

from __future__ import annotations

from msgspec import Struct

ENCODINGS = ("pcm16", "wav", "mp3", "opus", "flac", "aac", "pcmu", "pcma")
"""Names of audio encodings between gateway and backends."""


class AudioFormat(Struct, frozen=True):
    """Encoding and sample rate of a stream of audio."""

    encoding: str
    """One of ENCODINGS; empty lets the backend sniff or choose."""
    sample_rate: int = 0
    """Samples a second; 0 takes the backend's documented default."""


class CodeFormat(Struct, frozen=True):
    """What speech codes mean."""

    codec: str
    """As the vocoder service names it; empty takes its first."""
    codebook_count: int
    """Codes a frame."""
    frame_rate: float
    """Frames a second."""


class SpeechConfig(Struct, frozen=True):
    """Configuration of a speech stream."""

    voice: str = ""
    """Voice id or alias; empty takes the default voice."""
    model: str = ""
    output_format: AudioFormat | None = None
    """None is pcm16 at the voice's own rate."""
    speed: float = 1.0
    language: str = ""
    instructions: str = ""
    whole_sentences: bool = False
    """Cut text into sentences only, instead of an early first clause."""
    default_when_unknown: bool = False
    """Speak with the default voice where the named one does not exist."""
    exact_container: bool = False
    """Buffer the file and write exact sizes; wav only."""
    code_format: CodeFormat | None = None
    """Of a stream that speaks codes; None speaks text."""
    timeout: float | None = None
    """Seconds until the call's deadline; None sets none."""


class SpeechReady(Struct, frozen=True):
    """The slot is taken; always the first event."""

    voice: str
    model: str
    voice_fallback: bool
    output_format: AudioFormat
    mime_type: str
    queue_wait: float
    """Seconds."""


class AudioChunk(Struct, frozen=True):
    """A run of audio in the output format."""

    data: bytes
    first_sample: int
    sample_count: int


class SpeechMark(Struct, frozen=True):
    """The input up to an offset has been spoken at a sample."""

    input_offset: int
    """Characters of the joined text, or frames of codes."""
    sample: int


class SpeechProgress(Struct, frozen=True):
    """Still at work after a long silence."""

    elapsed: float
    """Seconds since the configuration."""


class SpeechFinished(Struct, frozen=True):
    """The end of the stream; always the last event of a call that did not fail."""

    reason: str
    """complete, length or voice_deleted."""
    sample_count: int
    input_units: int
    audio_seconds: float
    first_audio_seconds: float


SpeechEvent = SpeechReady | AudioChunk | SpeechMark | SpeechProgress | SpeechFinished


class Voice(Struct, frozen=True):
    """A voice that can be named in a SpeechConfig."""

    id: str
    name: str
    kind: str
    """preset, uploaded or cloned."""
    models: tuple[str, ...]
    language: str
    sample_rate: int
    created_at: int
    """Seconds since the epoch; 0 where unknown."""
    aliases: tuple[str, ...] = ()
    is_default: bool = False
    tenant: str = ""
    """Whose it is, where a tenant made it."""

    @property
    def is_made(self) -> bool:
        """Whether a tenant made it; presets are everybody's."""
        return self.kind in ("uploaded", "cloned")

    def visible_to(self, tenant: str) -> bool:
        """Whether a tenant may know of it."""
        return not self.is_made or self.tenant == tenant


class VoiceConsent(Struct, frozen=True):
    """A speaker's consent to a voice."""

    statement: str
    speaker: str
    granted_at: int
    """Seconds since the epoch."""
    evidence_sha256: bytes


class NewVoice(Struct, frozen=True):
    """A voice to be made of a sample."""

    name: str
    consent: VoiceConsent | None = None
