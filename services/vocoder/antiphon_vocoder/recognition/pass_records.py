"""What the recogniser's queue holds, and the message that answers an utterance."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from antiphon_vocoder.recognition.messages import (
    DecodeOptions,
    Failure,
    Final,
    Segment,
    UtteranceFailed,
)
from antiphon_vocoder.recognition.segmenter import Excerpt, Progress, Utterance
from antiphon_vocoder.recognition.speakers.centroid import SpeakerTracker, Voice
from antiphon_vocoder.recognition.stability import StablePrefix
from antiphon_vocoder.recognition.vad.detector import RATE
from antiphon_vocoder.recognition.whisper.backend import IsCancelled, never
from antiphon_vocoder.recognition.whisper.transcript import Effort, Transcript, shifted


class Recognizer(Protocol):
    """What runs a pass."""

    def transcribe(
        self,
        audio: NDArray[np.float32],
        options: DecodeOptions,
        *,
        timestamps: bool = False,
        effort: Effort = Effort.FULL,
        is_cancelled: IsCancelled = never,
    ) -> Transcript:
        """See WhisperRecognizer."""
        ...


@dataclass
class PassTotals:
    """Since the start of the process."""

    passes: int = 0
    pass_seconds: float = 0.0
    """Of passes that run at once each counts."""
    audio_seconds: float = 0.0
    speculative_hits: int = 0
    partials_skipped: int = 0


@dataclass
class FinalRequest:
    """An utterance whose text is owed."""

    utterance: Utterance
    closed_at: float
    transcript: Transcript | None = None
    failure: Failure | None = None

    @property
    def is_answered(self) -> bool:
        """Whether there is a transcript or a failure."""
        return self.transcript is not None or self.failure is not None


@dataclass
class StreamPasses:
    """What the queue knows of one stream."""

    number: int
    options: DecodeOptions
    partials: bool
    speakers: SpeakerTracker | None = None
    """Where it asks who speaks."""
    open_utterance: int = 0
    pending: deque[FinalRequest] = field(default_factory=deque)
    stable: StablePrefix = field(default_factory=StablePrefix)
    latest: tuple[tuple[int, int, int], Transcript] | None = None
    """Span and result of the last settled pass made ahead."""
    heard: tuple[tuple[int, int, int], Transcript | None] | None = None
    """Span and result of the last pass made ahead, whatever came of it."""
    last_message: object | None = None
    """Sent when nothing is pending any more."""


@dataclass
class FilePass:
    """A pass of a file job."""

    audio: NDArray[np.float32]
    options: DecodeOptions
    is_cancelled: IsCancelled
    result: Future[Transcript]


@dataclass(eq=False)
class Job:
    """What a thread works on: exactly one of final, ahead and file."""

    stream: StreamPasses | None = None
    final: FinalRequest | None = None
    ahead: Excerpt | None = None
    file: FilePass | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Nobody wants the result any more."""

    @property
    def can_wait(self) -> bool:
        """Nobody listens for the result: a partial or a part of a file."""
        return self.file is not None or isinstance(self.ahead, Progress)


def answer(
    stream: int, request: FinalRequest, speakers: SpeakerTracker | None = None
) -> Final | UtteranceFailed:
    """The message of an answered request; call in the order of utterances, as labels follow it."""
    utterance = request.utterance
    if request.transcript is None:
        failure = request.failure or Failure("INTERNAL", "INTERNAL", "recognition failed")
        return UtteranceFailed(stream, utterance.utterance, failure, utterance.tag)
    transcript = request.transcript
    start, first, last = map(milliseconds, (utterance.start, utterance.first, utterance.last))
    segments = labelled(transcript.segments, transcript.voices, speakers)
    return Final(
        stream=stream,
        utterance=utterance.utterance,
        text=transcript.text,
        start_ms=first,
        end_ms=last,
        language=transcript.language,
        segments=[shifted(segment, start, min(start, first), last) for segment in segments],
        tag_text=utterance.tag,
        confidence=transcript.confidence,
        no_speech_probability=transcript.no_speech,
        delay_ms=(time.monotonic() - request.closed_at) * 1000,
    )


def labelled(
    segments: list[Segment], voices: list[Voice], speakers: SpeakerTracker | None
) -> list[Segment]:
    """The segments with the speakers of their voices; as they are where nobody asks."""
    if speakers is None:
        return segments
    labels = speakers.labels(voices)
    return [
        msgspec.structs.replace(segment, speaker=label)
        for segment, label in zip(segments, labels, strict=True)
    ]


def milliseconds(sample: int) -> int:
    """Whole milliseconds of a sample index at 16 kHz."""
    return sample * 1000 // RATE
