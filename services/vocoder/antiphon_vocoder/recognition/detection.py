"""The detector thread: every live stream's windows in batches, never waiting for a transcript."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from antiphon_core.errors import AntiphonError, Internal
from antiphon_core.logs import get_logger
from numpy.typing import NDArray

from antiphon_vocoder.recognition.failures import failure_of
from antiphon_vocoder.recognition.messages import (
    CloseStream,
    OpenStream,
    Start,
    StreamCommand,
    StreamFailed,
    StreamReady,
)
from antiphon_vocoder.recognition.speakers.centroid import SpeakerTracker
from antiphon_vocoder.recognition.speakers.model import SpeakerModel
from antiphon_vocoder.recognition.stream import LiveStream
from antiphon_vocoder.recognition.turns.trial import Court
from antiphon_vocoder.recognition.vad import RATE, Detector, DetectorSet

log = get_logger("recognition.detection")


@dataclass
class DetectionTotals:
    """Since the start of the process."""

    windows: int = 0
    seconds: float = 0.0


class Detection:
    """All live streams of the worker; runs on one thread.

    Args:
        start: the worker's settings.
        detectors: where detectors come from.
        court: judges pauses; its passes are the recogniser's queue.
        send: takes messages for the front.
        speakers: enrols the known speakers of streams that ask who speaks.
    """

    def __init__(
        self,
        start: Start,
        detectors: DetectorSet,
        court: Court,
        send: Callable[[object], None],
        speakers: SpeakerModel,
    ) -> None:
        self._speakers = speakers
        self._enrolling: dict[int, tuple[OpenStream, Future[SpeakerTracker]]] = {}
        self._detectors = detectors
        self._court = court
        self._passes = court.passes
        self._send = send
        self._max_samples = int(start.max_utterance_seconds * RATE)
        pause = start.speculative_ms * RATE // 1000
        self._pause_samples = pause if pause else None
        self._interval_samples = start.partial_interval_ms * RATE // 1000
        self._streams: dict[int, LiveStream] = {}
        self._active: dict[int, LiveStream] = {}
        self.totals = DetectionTotals()

    @property
    def stream_count(self) -> int:
        """Live streams."""
        return len(self._streams)

    def open(self, message: OpenStream) -> None:
        """A stream begins; answers StreamReady or StreamFailed."""
        options = message.options
        try:
            stream = LiveStream(
                message.stream,
                options,
                detectors=self._detectors,
                court=self._court,
                send=self._send,
                max_samples=self._max_samples,
                pause_samples=self._pause_samples,
                interval_samples=self._interval_samples,
            )
        except AntiphonError as error:
            self._send(StreamFailed(message.stream, failure_of(error)))
            return
        self._streams[message.stream] = stream
        if options.speakers is None or not options.transcribe:
            self._begin(message, stream)
        else:
            self._enrolling[message.stream] = (message, self._speakers.submit(options.speakers))

    def _begin(
        self, message: OpenStream, stream: LiveStream, speakers: SpeakerTracker | None = None
    ) -> None:
        options = message.options
        self._passes.open(
            message.stream, options.decode, partials=options.partials, speakers=speakers
        )
        self._send(
            StreamReady(
                message.stream,
                stream.detector.name,
                stream.detector_fallback,
                self._court.judge.name,
            )
        )

    def close(self, message: CloseStream) -> None:
        """A stream is over, whatever it still has to do."""
        self._streams.pop(message.stream, None)
        self._active.pop(message.stream, None)
        self._enrolling.pop(message.stream, None)
        self._passes.close(message.stream)

    def command(self, message: StreamCommand) -> None:
        """A message of a stream; ignored after its end."""
        stream = self._streams.get(message.stream)
        if stream is not None:
            stream.receive(message)
            self._active[stream.number] = stream

    def round(self) -> bool:
        """Takes one window of each stream that has one; False when nothing could be done."""
        self._finish_enrolments()
        rows: dict[Detector, list[tuple[LiveStream, NDArray[np.float32]]]] = defaultdict(list)
        for stream in list(self._active.values()):
            if stream.number in self._enrolling:
                continue
            try:
                stream.settle()
                window = None if stream.is_waiting else self._next_window(stream)
            except Exception as error:
                self._fail(stream, error)
                continue
            if window is not None:
                rows[stream.detector].append((stream, window))
        for detector, batch in rows.items():
            self._score(detector, batch)
        return bool(rows)

    @property
    def is_waiting(self) -> bool:
        """Some stream has work that has to wait for the recogniser, the judge or an enrolment."""
        return bool(self._active or self._enrolling)

    def _finish_enrolments(self) -> None:
        """Streams whose known speakers are enrolled begin; a failed enrolment ends its stream."""
        for number, (message, enrolment) in list(self._enrolling.items()):
            if not enrolment.done():
                continue
            del self._enrolling[number]
            stream = self._streams[number]
            try:
                self._begin(message, stream, enrolment.result())
            except Exception as error:
                self._fail(stream, error)

    def _next_window(self, stream: LiveStream) -> NDArray[np.float32] | None:
        window = stream.next_window()
        if window is None:
            self._active.pop(stream.number, None)
            if stream.finished:
                self._streams.pop(stream.number, None)
        return window

    def _score(
        self, detector: Detector, batch: list[tuple[LiveStream, NDArray[np.float32]]]
    ) -> None:
        began = time.perf_counter()
        windows = np.stack([window for _, window in batch])
        try:
            probabilities = detector.score(windows, [stream.detector_state for stream, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                self._fail(batch[0][0], error)
            else:
                # Once more, each by itself: only a stream whose own window raises is over.
                for row in batch:
                    self._score(detector, [row])
            return
        self.totals.windows += len(batch)
        self.totals.seconds += time.perf_counter() - began
        for (stream, _), probability in zip(batch, probabilities, strict=True):
            try:
                stream.scored(float(probability))
            except Exception as error:
                self._fail(stream, error)

    def _fail(self, stream: LiveStream, error: Exception) -> None:
        """Ends one stream; a defect that it met does not end the worker, and so the others."""
        if not isinstance(error, AntiphonError):
            log.error("stream_failed", stream=stream.number, exc_info=error)
            error = Internal(f"recognition failed: {error}")
        self._send(StreamFailed(stream.number, failure_of(error)))
        self._streams.pop(stream.number, None)
        self._active.pop(stream.number, None)
        self._passes.close(stream.number)
