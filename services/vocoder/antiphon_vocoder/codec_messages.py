"""The messages between the front and the codec process.

Both sides import this module and nothing else of each other; see ``messages`` for the rules.

Words: a *frame* is one column of codes and ``frame_samples`` samples of audio. A *hop* is one run
of one stream; a *step* runs the hops of several streams at once. An *epoch* grows with each clear,
so that output of before it is told apart. Codes are int32, frame after frame; audio is mono float32
at the codec's rate; both little-endian. Times are seconds.
"""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction
from typing import Literal

import msgspec

from antiphon_vocoder.messages import Stop

Precision = Literal["fp32", "tf32", "bf16x3", "fp16", "bf16"]
"""How products are computed."""


class Stage(StrEnum):
    """What a stream has done to its input."""

    DECODE = "decode"
    ENCODE = "encode"


class CodecEngineConfig(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Everything that the codec process needs to boot."""

    codecs: list[str]
    """Checkpoint directories, each as ``directory`` or ``name=directory``; the first is the
    default."""
    device: str
    precision: Precision
    threads: int
    """Of the host's arithmetic."""
    slots: int
    """Streams at once; 0 takes what memory and speed allow."""
    memory_bytes: int
    """For weights, workspaces and the state of all slots; 0 takes a share of what is free."""
    rungs: list[int]
    """Rows that a step may have, ascending."""
    decode_ramp: list[int]
    """First hops of a decoded stream in units of 80 ms; the last one repeats."""
    encode_ramp: list[int]
    """Likewise of an encoded stream."""
    peer_wait_seconds: float
    lead_seconds: float
    """Unsent output from which a stream is not scheduled."""


class CodecInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded codec, as the front needs it."""

    name: str
    sample_rate: int
    frame_samples: int
    codebook_count: int
    codebook_size: int
    control_codes: list[int]
    """Further codes that are legal input."""
    stages: list[Stage]
    """What streams of it may do."""
    hops: dict[Stage, tuple[int, int]]
    """Frames of a stream's first hop and of its longest."""
    cost: dict[Stage, float]
    """Seconds of work a second of audio when one stream runs."""

    @property
    def frame_rate(self) -> Fraction:
        """Frames a second, exact."""
        return Fraction(self.sample_rate, self.frame_samples)


class OpenCodecStream(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Takes a slot for a stream; what an earlier one left there is zeroed."""

    slot: int
    generation: int
    codec: str
    stage: Stage
    codebooks: int
    """Codebooks of a frame, counted from the first."""


class PushUnits(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Next input: whole frames of codes to decode, or samples to encode."""

    slot: int
    generation: int
    data: bytes


class FlushStream(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Run what is buffered in short hops. With ``last`` nothing follows: the tail is given too."""

    slot: int
    generation: int
    last: bool


class ClearStream(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Drops all input so far that was not run; what follows begins anew, in this epoch."""

    slot: int
    generation: int
    epoch: int


class CodecDelivered(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """So many frames of the stream's output, over all epochs, have left for the client."""

    slot: int
    generation: int
    frame_count: int


class CloseCodecStream(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Frees the slot and drops all its work."""

    slot: int
    generation: int


CodecEngineInbound = (
    CodecEngineConfig
    | OpenCodecStream
    | PushUnits
    | FlushStream
    | ClearStream
    | CodecDelivered
    | CloseCodecStream
    | Stop
)


class CodecPhase(msgspec.Struct, tag=True, frozen=True):
    """Boot progress."""

    phase: str


class CodecEngineReady(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Loaded, measured and warmed up."""

    codecs: list[CodecInfo]
    slots: int
    bound: str
    """What bounds the slots: ``setting``, ``memory`` or ``speed``."""
    base_bytes: int
    """Weights, workspaces and recorded steps."""
    stream_bytes: int
    """State of one slot."""
    rungs: list[int]
    """Those that steps use."""
    recorded: int
    """Shapes that are recorded, or bound in advance where the device records nothing."""


class CodecEngineFailed(msgspec.Struct, tag=True, frozen=True):
    """The process cannot boot; it exits."""

    error: str


class HopOutput(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One stream's part of a step."""

    slot: int
    generation: int
    epoch: int
    frames: int
    """Input frames that are done with this hop."""
    offset: int
    size: int
    """Where its bytes are in the step's data."""
    last: bool
    """The stream's input has ended and this is the end of its output."""
    slack_seconds: float
    """Time until its listener would have run dry."""


class StepDone(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Output of one step: samples, or codes of the streams' own codebook counts."""

    codec: str
    stage: Stage
    frames: int
    rows: int
    """Rows that ran, padding included."""
    seconds: float
    hops: list[HopOutput]
    data: bytes


class StreamsEnded(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Streams whose input ended when nothing was left to run: (slot, generation, epoch)."""

    streams: list[tuple[int, int, int]]


class HopsFailed(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Streams whose hop failed: (slot, generation). They are over, the others go on."""

    streams: list[tuple[int, int]]
    error: str


class CodecStats(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Counters since the last of these messages, sent at most once a second, and memory."""

    cancelled_hops: int
    resets: int
    retried_steps: int
    graph_misses: int
    resident_bytes: int
    device_bytes: int


CodecEngineOutbound = (
    CodecPhase
    | CodecEngineReady
    | CodecEngineFailed
    | StepDone
    | StreamsEnded
    | HopsFailed
    | CodecStats
)
