"""Recognition of whole files: decoded, cut at pauses and recognised window by window."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
from antiphon_core.errors import AntiphonError, InvalidArgument, ResourceExhausted
from antiphon_core.logs import get_logger
from numpy.typing import NDArray

from antiphon_vocoder.formats import Encoding
from antiphon_vocoder.formats.decode import decode_blocks
from antiphon_vocoder.formats.pcm import RawDecoder
from antiphon_vocoder.recognition.failures import failure_of
from antiphon_vocoder.recognition.messages import (
    Failure,
    FileFailed,
    FileFinished,
    FileSegment,
    RecognizeFile,
    TurnOptions,
)
from antiphon_vocoder.recognition.pass_records import labelled, milliseconds
from antiphon_vocoder.recognition.passes import PassQueue
from antiphon_vocoder.recognition.segmenter import Segmenter, SegmentEvent, Utterance
from antiphon_vocoder.recognition.speakers.centroid import SpeakerTracker
from antiphon_vocoder.recognition.speakers.model import SpeakerModel
from antiphon_vocoder.recognition.vad import RATE, Detector, DetectorSet, DetectorState
from antiphon_vocoder.recognition.whisper.transcript import shifted

# Longer pauses than in a conversation join sentences into one pass, which then has context.
_FILE_TURNS = TurnOptions(silence_ms=2000)
_READ_BYTES = 65_536
_LEAST_STEP = RATE
"""A pass that got less far than 1 s is taken to have heard everything."""

log = get_logger("recognition.files")


class FileJob:
    """One file, on a thread of its own that mostly waits for the recogniser.

    Args:
        request: the file and how to recognise it.
        detectors: where the detector comes from.
        passes: the recogniser's queue.
        send: takes messages for the front.
        speakers: tells speakers apart, where the request asks for it.
        max_seconds: longest audio.
        max_samples: longest window of one pass.
        on_end: called on the job's thread when it is over.
    """

    def __init__(
        self,
        request: RecognizeFile,
        detectors: DetectorSet,
        passes: PassQueue,
        send: Callable[[object], None],
        *,
        speakers: SpeakerModel,
        max_seconds: float,
        max_samples: int,
        on_end: Callable[[int], None],
    ) -> None:
        self._request = request
        self._detectors = detectors
        self._passes = passes
        self._send = send
        self._speakers = speakers
        self._tracker: SpeakerTracker | None = None
        self._max_seconds = max_seconds
        self._max_samples = max_samples
        self._on_end = on_end
        self._cancelled = threading.Event()
        self._texts: list[str] = []
        self._language = request.decode.language
        self._last_end = 0
        self._samples = 0
        self._thread = threading.Thread(target=self._run, name=f"file-{request.job}", daemon=True)

    def start(self) -> None:
        """Begins; FileFinished or FileFailed ends it, unless it is cancelled."""
        self._thread.start()

    def cancel(self) -> None:
        """Ends the job soon; nothing more is sent about it."""
        self._cancelled.set()

    def _run(self) -> None:
        job = self._request.job
        began = time.monotonic()
        try:
            if self._request.speakers is not None:
                self._tracker = self._speakers.tracker(self._request.speakers)
            for utterance in self._utterances():
                self._recognise(utterance)
            text = "".join(self._texts).strip()
            elapsed = time.monotonic() - began
            self._answer(FileFinished(job, text, self._language, self._samples / RATE, elapsed))
        except AntiphonError as error:
            self._answer(FileFailed(job, failure_of(error)))
        except CancelledError:
            log.info("file_job_cancelled", job=job)
        except MemoryError:
            error = ResourceExhausted(
                "the recogniser is out of memory", reason="MEMORY_PRESSURE", retry_after=5.0
            )
            self._answer(FileFailed(job, failure_of(error)))
        except Exception as error:  # any defect must end the job's call, not hang it
            log.exception("file_job_failed", job=job)
            self._answer(FileFailed(job, Failure("INTERNAL", "INTERNAL", f"recognition: {error}")))
        finally:
            self._on_end(job)

    def _answer(self, message: object) -> None:
        if not self._cancelled.is_set():
            self._send(message)

    def _utterances(self) -> Iterator[Utterance]:
        """Spans of the file that hold speech, none longer than one pass can hear."""
        detector, _ = self._detectors.resolve(_FILE_TURNS.detector)
        segmenter = Segmenter(
            _FILE_TURNS,
            max_samples=self._max_samples,
            pause_samples=None,
            interval_samples=None,
        )
        state = detector.new_state()
        for block in self._blocks():
            segmenter.append(block)
            yield from _voiced(_scan(segmenter, detector, state))
        yield from _voiced(segmenter.finish())

    def _blocks(self) -> Iterator[NDArray[np.float32]]:
        """Mono samples at 16 kHz, bounded in length."""
        for block in self._decoded():
            if self._cancelled.is_set():
                raise CancelledError
            self._samples += len(block)
            if self._samples > self._max_seconds * RATE:
                raise InvalidArgument(
                    f"the audio is longer than {self._max_seconds / 3600:g} h",
                    reason="INVALID_AUDIO",
                    field="audio",
                    metadata={"limit": f"{self._max_seconds:g}"},
                )
            yield block
        if self._samples == 0:
            raise InvalidArgument("the audio is empty", reason="INVALID_AUDIO", field="audio")

    def _decoded(self) -> Iterator[NDArray[np.float32]]:
        with Path(self._request.path).open("rb") as file:
            if not self._request.encoding:
                yield from decode_blocks(file, RATE)
                return
            decoder = RawDecoder(Encoding(self._request.encoding), self._request.rate, RATE)
            while data := file.read(_READ_BYTES):
                yield decoder.decode(data)
            yield decoder.flush()

    def _recognise(self, utterance: Utterance) -> None:
        """Sends the segments of one utterance, in as many passes as the recogniser needs."""
        audio = utterance.audio
        first = utterance.start
        while len(audio) >= _LEAST_STEP // 4:
            transcript = self._passes.submit_file(
                audio, self._request.decode, self._cancelled.is_set
            ).result()
            if self._cancelled.is_set():
                raise CancelledError
            self._language = self._language or transcript.language
            end = milliseconds(first + len(audio))
            segments = transcript.segments
            if self._tracker is not None:
                # On this thread, so that the recogniser's next pass does not wait for it.
                voices = self._speakers.voices(audio, segments)
                segments = labelled(segments, voices, self._tracker)
            for segment in segments:
                segment = shifted(segment, milliseconds(first), self._last_end, end)
                self._last_end = segment.end_ms
                self._texts.append(segment.text)
                self._send(FileSegment(self._request.job, segment))
            step = int(transcript.heard_seconds * RATE)
            if step < _LEAST_STEP:
                return
            audio = audio[step:]
            first += step


def _scan(segmenter: Segmenter, detector: Detector, state: DetectorState) -> Iterator[SegmentEvent]:
    while (window := segmenter.next_window()) is not None:
        probability = detector.score(window[None], [state])[0]
        yield from segmenter.scored(float(probability))


def _voiced(events: Iterator[SegmentEvent] | list[SegmentEvent]) -> Iterator[Utterance]:
    for event in events:
        if isinstance(event, Utterance) and len(event.audio):
            yield event
