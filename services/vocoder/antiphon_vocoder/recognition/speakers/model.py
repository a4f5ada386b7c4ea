"""The speaker model of the recogniser's process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from antiphon_core.errors import FailedPrecondition
from antiphon_core.logs import get_logger
from numpy.typing import NDArray

from antiphon_vocoder.recognition.messages import Segment
from antiphon_vocoder.recognition.speakers.centroid import SpeakerTracker, Voice
from antiphon_vocoder.recognition.speakers.embedder import RATE, Embedder, VoiceUnheard
from antiphon_vocoder.recognition.speakers.enrolment import enrol
from antiphon_vocoder.recognition.speakers.options import SpeakerOptions
from antiphon_vocoder.recognition.speakers.packaged import packaged_model

LEAST_SECONDS = 0.5
"""A shorter segment has the speaker before it."""
_LONGEST = 10 * RATE
"""So much from the middle of a segment is heard: more says little more about the voice."""

log = get_logger("recognition.speakers")


@dataclass
class SpeakerTotals:
    """Since the start of the process."""

    voices: int = 0
    seconds: float = 0.0
    """Time of embedding."""
    failures: int = 0
    """Segments left without a speaker by an error of the model."""


class SpeakerModel:
    """Loaded at once where a file is configured, else when somebody first asks who speaks.

    Args:
        path: a configured ONNX model; None takes the packaged one.
        same_voice: cosine from which two voices are one; None takes the model's own.

    Raises:
        FailedPrecondition: a configured model does not load.
    """

    def __init__(self, path: Path | None, same_voice: float | None = None) -> None:
        self.totals = SpeakerTotals()
        self._same_voice = same_voice
        self._embedder: Embedder | None = None
        self._loading = threading.Lock()
        self._counting = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="enrolment")
        if path is not None:
            # Here, as below: most processes need neither of the models.
            from antiphon_vocoder.recognition.speakers.exported import ExportedEmbedder

            self._embedder = ExportedEmbedder(path)

    @property
    def is_available(self) -> bool:
        """Whether there is a model."""
        return self._embedder is not None or packaged_model() is not None

    def tracker(self, options: SpeakerOptions) -> SpeakerTracker:
        """A tracker of a new stream or file, with its known speakers; may load the model.

        Raises:
            FailedPrecondition: SPEAKER_MODEL_MISSING.
            InvalidArgument: a known speaker's sample.
        """
        embedder = self._loaded()
        same_voice = embedder.same_voice if self._same_voice is None else self._same_voice
        return SpeakerTracker(
            same_voice, options.most, enrol(options.known, embedder), rise=embedder.rise
        )

    def submit(self, options: SpeakerOptions) -> Future[SpeakerTracker]:
        """``tracker`` on a thread of its own: decoding and loading take their time."""
        return self._thread.submit(self.tracker, options)

    def voices(self, audio: NDArray[np.float32], segments: Iterable[Segment]) -> list[Voice]:
        """The voice of each segment of audio (n,) at 16 kHz; an error leaves it out."""
        return [self._voice(_excerpt(audio, segment)) for segment in segments]

    def stop(self) -> None:
        """Ends the thread; what was not begun is not done."""
        self._thread.shutdown(cancel_futures=True)

    def _voice(self, audio: NDArray[np.float32]) -> Voice:
        seconds = len(audio) / RATE
        if seconds < LEAST_SECONDS:
            return Voice(seconds)
        began = time.perf_counter()
        try:
            voice = Voice(seconds, self._loaded().embed(_middle(audio)))
        except VoiceUnheard:
            voice = Voice(seconds)
        except Exception as error:  # a transcript is worth more than its label
            log.warning("speaker_embedding_failed", problem=repr(error))
            voice = Voice(seconds, failed=True)
        with self._counting:
            self.totals.voices += 1
            self.totals.failures += voice.failed
            self.totals.seconds += time.perf_counter() - began
        return voice

    def _loaded(self) -> Embedder:
        with self._loading:
            if self._embedder is None:
                self._embedder = _open_packaged()
            return self._embedder


def _open_packaged() -> Embedder:
    path = packaged_model()
    if path is None:
        raise FailedPrecondition(
            "the package resemblyzer is not installed: run `make setup`, or set "
            "recognition.speaker_model",
            reason="SPEAKER_MODEL_MISSING",
        )
    from antiphon_vocoder.recognition.speakers.ge2e import Ge2eEmbedder

    began = time.perf_counter()
    embedder = Ge2eEmbedder(path)
    log.info("speaker_model_loaded", model=embedder.name, seconds=time.perf_counter() - began)
    return embedder


def _excerpt(audio: NDArray[np.float32], segment: Segment) -> NDArray[np.float32]:
    first, last = (time_ms * RATE // 1000 for time_ms in (segment.start_ms, segment.end_ms))
    return audio[first:last]


def _middle(audio: NDArray[np.float32]) -> NDArray[np.float32]:
    first = max(0, (len(audio) - _LONGEST) // 2)
    return audio[first : first + _LONGEST]
