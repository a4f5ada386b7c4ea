"""The messages between the front and its two synthesis workers: the phonemizer and the speech
model process.

Both sides import this module and nothing else of each other. Messages are msgspec structs,
encoded as msgpack and told apart by their tag; new fields come at the end, with defaults.

Words: a *slot* belongs to one stream at a time and its *generation* grows with every use, so that
what an earlier stream left behind is told apart. A *clause* is one segment's phoneme ids. A *hop*
is one unit of the model process's work: a clause's encoding, or the decoding of one window of it.
Audio is mono float32, little-endian, at the voice's rate. Times are seconds.
"""

from __future__ import annotations

import msgspec


class PhonemizeRequest(msgspec.Struct, tag=True, frozen=True):
    """One run of text without punctuation marks, for the phonemizer."""

    id: int
    text: str
    voice: str
    """espeak-ng's voice name, such as en-us."""


class PhonemizeReply(msgspec.Struct, tag=True, frozen=True):
    """IPA of the run; ``error`` is set instead when espeak-ng refused."""

    id: int
    phonemes: str = ""
    error: str = ""


class PhonemizerReady(msgspec.Struct, tag=True, frozen=True):
    """espeak-ng is loaded; ``error`` says why it is not."""

    version: str = ""
    error: str = ""


class Stop(msgspec.Struct, tag=True, frozen=True):
    """Ends a worker."""


PhonemizerInbound = PhonemizeRequest | Stop
PhonemizerOutbound = PhonemizeReply | PhonemizerReady


class VoiceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Piper voice as the model process needs it."""

    id: str
    model_path: str
    sample_rate: int
    noise_scale: float
    length_scale: float
    noise_width: float
    speaker: int | None = None
    """Speaker id of a voice with several; None for a voice with one."""


class EngineConfig(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Everything that the model process needs to boot."""

    voices: list[VoiceFile]
    """The first is loaded and warmed up at boot, the others at their first use."""
    workers: int
    """Hops that run at once."""
    threads: int
    """Threads of one hop."""
    lead_seconds: float
    """Unsent audio from which a stream is not scheduled."""
    gain: float
    """Factor on every sample."""


class OpenStream(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Takes a slot for a stream."""

    slot: int
    generation: int
    voice: str
    speed: float
    noiseless: bool
    """Noise scales 0: equal input gives equal samples."""


class SpeakClause(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """The next clause of a stream."""

    slot: int
    generation: int
    clause: int
    """Index in the stream."""
    phoneme_ids: list[int]
    pause_seconds: float
    """Silence behind it."""
    first: bool
    """A listener waits for it: it is decoded in small windows at first."""
    word_ends: list[int] = []
    """For each word the index behind its last id."""


class DropClauses(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Drops the stream's clauses up to and including this index, also one being spoken."""

    slot: int
    generation: int
    clause: int


class Delivered(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """So many samples of the stream, at the voice's rate, have left for the client."""

    slot: int
    generation: int
    sample_count: int


class CloseStream(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Frees the slot and drops all its work."""

    slot: int
    generation: int


EngineInbound = (
    EngineConfig | OpenStream | SpeakClause | DropClauses | Delivered | CloseStream | Stop
)


class EnginePhase(msgspec.Struct, tag=True, frozen=True):
    """Boot progress."""

    phase: str


class EngineReady(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Loaded and warmed up."""

    voice: str
    cost: float
    """Seconds of work a second of audio, on one worker."""
    windowed: bool
    """The voice's decoder runs in windows; otherwise a clause is one hop."""
    whole_reason: str = ""
    """Why it does not."""


class EngineFailed(msgspec.Struct, tag=True, frozen=True):
    """The process cannot boot; it exits."""

    error: str


class SpeechAudio(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Audio of one hop."""

    slot: int
    generation: int
    clause: int
    samples: bytes
    clipped_count: int
    last: bool
    """The clause is complete."""
    hop_seconds: float
    encode_seconds: float
    """Time of the clause's encoding, in its first message; otherwise 0."""
    slack_seconds: float
    """Audio produced so far minus time since the first, before this message."""
    word_ends: list[tuple[int, int]] = []
    """(word of the clause, sample of this message) for each word that ends in it."""


class StreamFailed(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """A hop raised: the stream is over, the others go on."""

    slot: int
    generation: int
    error: str


class EngineStats(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Counters since the last of these messages, sent at most once a second."""

    cancelled_hops: int
    resident_bytes: int


EngineOutbound = EnginePhase | EngineReady | EngineFailed | SpeechAudio | StreamFailed | EngineStats
