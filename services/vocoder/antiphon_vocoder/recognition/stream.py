"""One live stream in the worker: bytes and commands in, windows for the detector out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from antiphon_vocoder.formats import Encoding
from antiphon_vocoder.formats.pcm import RawDecoder
from antiphon_vocoder.recognition.messages import (
    Audio,
    Consumed,
    EndInput,
    Flush,
    Reset,
    SetTurns,
    Started,
    Stopped,
    StreamCommand,
    StreamFinished,
    StreamOptions,
)
from antiphon_vocoder.recognition.pass_records import milliseconds
from antiphon_vocoder.recognition.segmenter import (
    Candidate,
    Pause,
    Segmenter,
    SegmentEvent,
    SpeechStart,
    SpeechStop,
    Utterance,
)
from antiphon_vocoder.recognition.turns.trial import Court, Trial
from antiphon_vocoder.recognition.vad import DetectorSet
from antiphon_vocoder.recognition.vad.detector import RATE

_PIECE = 16_384
"""Bytes that are decoded at a time, so that a large message costs no large buffer."""
_REPORT_BYTES = 65_536
_MAX_BACKLOG = 8
"""Unanswered finals from which a stream's audio waits. Live speech never has so many unless the
recogniser is overloaded; audio that is sent faster than real time would fill the memory."""


class LiveStream:
    """Runs on the detector thread only.

    Args:
        number: the front's number of the stream.
        options: of the stream.
        detectors: where detectors come from.
        court: judges pauses; its passes are the recogniser's queue.
        send: takes messages for the front.
        max_samples, pause_samples, interval_samples: as Segmenter.

    Raises:
        InvalidArgument: encoding, rate or detector.
    """

    def __init__(
        self,
        number: int,
        options: StreamOptions,
        *,
        detectors: DetectorSet,
        court: Court,
        send: Callable[[object], None],
        max_samples: int,
        pause_samples: int | None,
        interval_samples: int,
    ) -> None:
        self.number = number
        self.finished = False
        self._transcribe = options.transcribe
        self._detectors = detectors
        self._court = court
        self._passes = court.passes
        self._trial: Trial | None = None
        self._paused: tuple[int, int, int] | None = None
        self._send = send
        self._decoder = RawDecoder(Encoding(options.encoding), options.rate, RATE)
        self.detector, self.detector_fallback = detectors.resolve(options.turns.detector)
        self.detector_state = self.detector.new_state()
        self._segmenter = Segmenter(
            options.turns,
            max_samples=max_samples,
            pause_samples=pause_samples if options.transcribe else None,
            interval_samples=interval_samples if options.partials else None,
        )
        self._inbox: deque[StreamCommand] = deque()
        self._unreported = 0

    def receive(self, command: StreamCommand) -> None:
        """Queues a command behind the former ones."""
        if isinstance(command, Audio):
            for first in range(0, len(command.data), _PIECE):
                self._inbox.append(Audio(self.number, command.data[first : first + _PIECE]))
        else:
            self._inbox.append(command)

    @property
    def is_waiting(self) -> bool:
        """A pause that is judged, or unanswered finals, keep the stream from taking more audio.

        What comes after the pause waits with it, so that events follow from the audio alone,
        however long the judge takes.
        """
        return self._trial is not None or self._passes.backlog(self.number) >= _MAX_BACKLOG

    def next_window(self) -> NDArray[np.float32] | None:
        """The next window to score; obeys commands that come before it.

        Raises:
            InvalidArgument: a detector that cannot load.
        """
        while (window := self._segmenter.next_window()) is None and self._inbox:
            self._obey(self._inbox.popleft())
        return window

    def scored(self, probability: float) -> None:
        """Takes the probability of the window from ``next_window``."""
        self._handle(self._segmenter.scored(probability))

    def settle(self) -> None:
        """Takes the answer about a pause that is judged, once there is one."""
        if self._trial is None or (probability := self._trial.outcome()) is None:
            return
        self._trial = None
        events = self._segmenter.judged(probability)
        self._court.totals.refused += not events
        self._handle(events)

    def _obey(self, command: StreamCommand) -> None:
        segmenter = self._segmenter
        match command:
            case Audio(data=data):
                segmenter.append(self._decoder.decode(data))
                self._report(len(data))
            case Flush(tag_text=tag):
                self._handle(segmenter.flush(tag))
            case Reset():
                segmenter.reset()
                self._passes.drop_open(self.number, segmenter.utterances)
            case SetTurns(turns=turns):
                self._change_detector(turns.detector)
                self._handle(segmenter.set_turns(turns))
            case EndInput():
                self._finish()

    def _change_detector(self, name: str) -> None:
        detector, self.detector_fallback = self._detectors.resolve(name)
        if detector is not self.detector:
            self.detector = detector
            self.detector_state = detector.new_state()

    def _finish(self) -> None:
        self._segmenter.append(self._decoder.flush())
        self._handle(self._segmenter.finish())
        self.finished = True
        message = StreamFinished(
            self.number, self._segmenter.history.end / RATE, self._segmenter.utterances
        )
        self._passes.finish(self.number, message)

    def _report(self, count: int) -> None:
        self._unreported += count
        if self._unreported >= _REPORT_BYTES:
            self._send(Consumed(self.number, self._unreported))
            self._unreported = 0

    def _handle(self, events: list[SegmentEvent]) -> None:
        for event in events:
            match event:
                case SpeechStart():
                    at = milliseconds(event.position)
                    self._send(Started(self.number, event.utterance, at))
                case SpeechStop(end_probability=probability, forced=forced):
                    at = milliseconds(event.position)
                    self._send(Stopped(self.number, event.utterance, at, probability, forced))
                    self._court.totals.forced += forced
                case Candidate():
                    self._try(event)
                case Utterance():
                    if self._transcribe:
                        self._passes.submit_final(self.number, event)
                case _:
                    if isinstance(event, Pause):
                        self._paused = event.span
                    self._passes.submit_ahead(self.number, event)

    def _try(self, candidate: Candidate) -> None:
        if self._court.judge.needs_text and self._paused != candidate.span:
            pause = Pause(candidate.utterance, candidate.start, candidate.audio)
            self._passes.submit_ahead(self.number, pause)
        self._trial = Trial(self._court, self.number, candidate)
