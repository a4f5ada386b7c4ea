"""Doubles of the recogniser and the detector, and a stream that is driven by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError

import numpy as np
from antiphon_vocoder.recognition.messages import DecodeOptions, Segment, TurnOptions
from antiphon_vocoder.recognition.segmenter import Segmenter, SegmentEvent
from antiphon_vocoder.recognition.vad.detector import RATE, WINDOW, DetectorState
from antiphon_vocoder.recognition.whisper.backend import IsCancelled, never
from antiphon_vocoder.recognition.whisper.transcript import Effort, Transcript
from numpy.typing import NDArray

LOUD = 0.5
"""Amplitude that the fake detector takes for speech."""


class LevelDetector:
    """Speech is a window whose mean level is above 0.1."""

    name = "level"

    def new_state(self) -> DetectorState:
        return DetectorState()

    def score(
        self, windows: NDArray[np.float32], states: Sequence[DetectorState]
    ) -> NDArray[np.float32]:
        return (np.abs(windows).mean(axis=1) > 0.1).astype(np.float32)


class SpanRecognizer:
    """The text of an excerpt is its length and level; passes can be held back or made to fail."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, Effort]] = []
        self.cancelled: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def transcribe(
        self,
        audio: NDArray[np.float32],
        options: DecodeOptions,
        *,
        timestamps: bool = False,
        effort: Effort = Effort.FULL,
        is_cancelled: IsCancelled = never,
    ) -> Transcript:
        self.calls.append((len(audio), effort))
        limit = time.monotonic() + 60
        while not self.gate.wait(0.002):
            assert time.monotonic() < limit
            if is_cancelled():
                self.cancelled.append(len(audio))
                raise CancelledError
        if self.error is not None:
            raise self.error
        text = f"{len(audio)} samples"
        end = len(audio) * 1000 // RATE
        segment = Segment(text, 0, end, [1], 0.0, -0.1, 1.0, 0.0, [])
        return Transcript([segment], "en", len(audio) / RATE, effort is not Effort.DRAFT)


def tone(windows: int, level: float = LOUD) -> NDArray[np.float32]:
    """So many windows of sound that the fake detector takes for speech; level 0 is silence."""
    return np.full(windows * WINDOW, level, np.float32)


def make_segmenter(
    *, manual: bool = False, max_seconds: float = 30.0, pause_ms: int | None = 160, **turns: float
) -> Segmenter:
    """A segmenter with 500 ms of silence and 300 ms of prefix unless told otherwise."""
    return Segmenter(
        TurnOptions(manual=manual, **turns),  # type: ignore[arg-type]
        max_samples=int(max_seconds * RATE),
        pause_samples=None if pause_ms is None else pause_ms * RATE // 1000,
        interval_samples=RATE // 2,
    )


def scan(segmenter: Segmenter, pieces: Iterable[NDArray[np.float32]]) -> list[SegmentEvent]:
    """Feeds pieces one by one and scores every window by its level."""
    detector = LevelDetector()
    events: list[SegmentEvent] = []
    for piece in pieces:
        segmenter.append(piece)
        while (window := segmenter.next_window()) is not None:
            probability = detector.score(window[None], [DetectorState()])[0]
            events += segmenter.scored(float(probability))
    return events


def cut(audio: NDArray[np.float32], lengths: Sequence[int]) -> list[NDArray[np.float32]]:
    """The audio in pieces of these lengths, again and again until it ends."""
    pieces = []
    position = index = 0
    while position < len(audio):
        length = max(1, lengths[index % len(lengths)])
        pieces.append(audio[position : position + length])
        position += length
        index += 1
    return pieces
