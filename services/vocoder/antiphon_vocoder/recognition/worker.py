"""The recogniser process: ``python -m antiphon_vocoder.recognition.worker``."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
from antiphon_core.errors import AntiphonError
from antiphon_core.ipc.endpoint import Endpoint, WorkerEndpoint
from antiphon_core.logs import configure_logging, get_logger

from antiphon_vocoder.recognition.detection import Detection
from antiphon_vocoder.recognition.failures import failure_of
from antiphon_vocoder.recognition.files import FileJob
from antiphon_vocoder.recognition.gauges import WorkerGauges
from antiphon_vocoder.recognition.messages import (
    Audio,
    CancelFile,
    CloseStream,
    DecodeOptions,
    EndInput,
    Flush,
    OpenStream,
    RecognizeFile,
    Reset,
    SetTurns,
    Start,
    Stop,
    ToWorker,
    WorkerFailed,
    WorkerReady,
)
from antiphon_vocoder.recognition.passes import PassQueue
from antiphon_vocoder.recognition.speakers.model import SpeakerModel
from antiphon_vocoder.recognition.turns import load_judge
from antiphon_vocoder.recognition.turns.trial import Court
from antiphon_vocoder.recognition.vad import RATE, WINDOW, DetectorSet
from antiphon_vocoder.recognition.whisper.opening import (
    EngineOptions,
    open_recognizer,
    packaged_model,
)

_GAUGE_SECONDS = 1.0
_RETRY_SECONDS = 0.02
"""How soon a stream that waits for the recogniser is looked at again."""

log = get_logger("recognition.worker")


class Worker:
    """Loaded models and all work of the process.

    Args:
        start: settings.
        endpoint: the channel to the front.

    Raises:
        FailedPrecondition: the recogniser's model, or a configured one, does not load.
    """

    def __init__(self, start: Start, endpoint: Endpoint) -> None:
        began = time.monotonic()
        self._start = start
        self._endpoint = endpoint
        directory = Path(start.model_dir) if start.model_dir else packaged_model()
        self._recognizer = recognizer = open_recognizer(directory, _engine_options(start))
        judge = load_judge(_path(start.turn_model))
        self._speakers = SpeakerModel(_path(start.speaker_model), start.same_voice)
        self._detectors = DetectorSet()
        detector, fallback = self._detectors.resolve("auto")
        if fallback:
            log.warning("detector_fallback", detector=detector.name)
        # First calls allocate; the first speaker must not wait for it.
        recognizer.transcribe(np.zeros(RATE, np.float32), DecodeOptions())
        detector.score(np.zeros((1, WINDOW), np.float32), [detector.new_state()])
        self._passes = PassQueue(
            recognizer, endpoint.send, lanes=recognizer.lanes, speakers=self._speakers
        )
        self._court = Court(judge, self._passes)
        self._detection = Detection(
            start, self._detectors, self._court, endpoint.send, self._speakers
        )
        self._files: dict[int, FileJob] = {}
        self._stopping = False
        self._gauges_at = 0.0
        self._passes.start()
        info = msgspec.structs.replace(recognizer.info, diarizes=self._speakers.is_available)
        endpoint.send(WorkerReady(info, detector.name, time.monotonic() - began))

    def run(self, first: list[object]) -> None:
        """Works until Stop; ``first`` are messages that came before."""
        for message in first:
            self._dispatch(message)
        while not self._stopping:
            for message in self._endpoint.drain():
                self._dispatch(message)
            if not self._detection.round():
                waiting = self._detection.is_waiting
                self._endpoint.wait(_RETRY_SECONDS if waiting else _GAUGE_SECONDS)
            self._passes.raise_failure()
            self._recognizer.raise_failure()
            self._send_gauges()
        for job in list(self._files.values()):
            job.cancel()
        self._court.stop()
        self._speakers.stop()
        self._passes.stop()
        self._recognizer.close()

    def _dispatch(self, message: object) -> None:
        match message:
            case Audio() | Flush() | Reset() | SetTurns() | EndInput():
                self._detection.command(message)
            case OpenStream():
                self._detection.open(message)
            case CloseStream():
                self._detection.close(message)
            case RecognizeFile():
                self._open_file(message)
            case CancelFile(job=job):
                if job in self._files:
                    self._files[job].cancel()
            case Stop():
                self._stopping = True
            case _:
                raise TypeError(f"unexpected message {type(message).__name__}")

    def _open_file(self, message: RecognizeFile) -> None:
        job = FileJob(
            message,
            self._detectors,
            self._passes,
            self._endpoint.send,
            speakers=self._speakers,
            max_seconds=self._start.max_file_seconds,
            max_samples=int(self._start.max_utterance_seconds * RATE),
            on_end=self._forget_file,
        )
        self._files[message.job] = job
        job.start()

    def _forget_file(self, job: int) -> None:
        self._files.pop(job, None)

    def _send_gauges(self) -> None:
        now = time.monotonic()
        if now - self._gauges_at < _GAUGE_SECONDS:
            return
        self._gauges_at = now
        detection, passes, court = self._detection.totals, self._passes.totals, self._court.totals
        speakers = self._speakers.totals
        self._endpoint.send(
            WorkerGauges(
                windows=detection.windows,
                vad_seconds=detection.seconds,
                passes=passes.passes,
                pass_seconds=passes.pass_seconds,
                audio_seconds=passes.audio_seconds,
                speculative_hits=passes.speculative_hits,
                partials_skipped=passes.partials_skipped,
                pauses_judged=court.judged,
                pauses_refused=court.refused,
                pauses_unheard=court.unheard,
                turns_forced=court.forced,
                judge_seconds=court.seconds,
                voices=speakers.voices,
                voice_seconds=speakers.seconds,
                voice_failures=speakers.failures,
                keywords_left_out=self._recognizer.keywords_left_out,
                graph_misses=self._recognizer.graph_misses,
                queued=self._passes.queued,
                resident_bytes=_resident_bytes(),
            )
        )


def _path(name: str) -> Path | None:
    return Path(name) if name else None


def _engine_options(start: Start) -> EngineOptions:
    return EngineOptions(
        threads=start.threads,
        beam_size=start.beam_size,
        compute_type=start.compute_type,
        device=start.device,
        dtype=start.dtype,
        lanes=start.lanes,
    )


def run_worker(endpoint: Endpoint) -> None:
    """Waits for Start, loads the models and works until Stop; reports a model that is missing."""
    pending: list[object] = []
    while not pending:
        endpoint.wait(None)
        pending = endpoint.drain()
    start, *rest = pending
    if not isinstance(start, Start):
        raise TypeError(f"the first message must be Start, got {type(start).__name__}")
    try:
        worker = Worker(start, endpoint)
    except AntiphonError as error:
        endpoint.send(WorkerFailed(failure_of(error)))
        return
    worker.run(rest)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    """Entry of the process."""
    configure_logging("vocoder-recogniser")
    endpoint = WorkerEndpoint.from_argv(sys.argv[1:], inbound=ToWorker)
    try:
        run_worker(endpoint)
    finally:
        endpoint.close()


if __name__ == "__main__":
    main()
