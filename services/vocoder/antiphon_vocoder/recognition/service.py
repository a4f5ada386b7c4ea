"""Recognition as the vocoder's process holds it: the worker, its sessions and the servicer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from antiphon_core import metrics
from antiphon_core.errors import AntiphonError, ResourceExhausted, Unavailable
from antiphon_core.ipc.worker import Worker, WorkerExit, WorkerProcess
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.logs import get_logger

from antiphon_vocoder.recognition import messages as wire
from antiphon_vocoder.recognition.config import RecognitionSettings
from antiphon_vocoder.recognition.failures import error_of
from antiphon_vocoder.recognition.gauges import GAUGES, WorkerGauges, worker_values
from antiphon_vocoder.recognition.servicer import RecognitionServicer
from antiphon_vocoder.recognition.session import Session, worker_died

WORKER_MODULE = "antiphon_vocoder.recognition.worker"
_COMPONENT = "recogniser"
_DELAY_BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0, 4.0, 8.0)

log = get_logger("recognition")

_SLEEPING_THREADS = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
"""The recogniser's threads sleep between two parallel parts instead of turning: speech, whose
process shares the cores, had four times as many gaps beside threads that turn."""

WorkerFactory = Callable[..., Worker]


class RecognitionRuntime:
    """Starts and supervises the worker, and routes messages between it and the calls.

    Args:
        settings: of recognition.
        worker: makes the worker; tests pass one that runs in a thread.
    """

    def __init__(
        self, settings: RecognitionSettings, *, worker: WorkerFactory = WorkerProcess
    ) -> None:
        self.settings = settings
        self.servicer = RecognitionServicer(self)
        self._numbers = count(1)
        self._streams: dict[int, Session] = {}
        self._files: dict[int, Session] = {}
        self._lifecycle: Lifecycle | None = None
        self._ready: asyncio.Future[wire.WorkerReady] | None = None
        self._recognizer: wire.RecognizerInfo | None = None
        self._gauges: WorkerGauges | None = None
        self._loss: Unavailable | None = None
        self._worker = worker(
            name=_COMPONENT,
            module=WORKER_MODULE,
            inbound=wire.ToFront,
            on_message=self._on_message,
            on_exit=self._on_exit,
            start_message=_start_message(settings),
            environment=_SLEEPING_THREADS,
            stop_message=wire.Stop(),
        )
        self._final_delay = metrics.histogram(
            "recognition_final_delay_seconds",
            "From the end of an utterance to its final transcript",
            buckets=_DELAY_BUCKETS,
        )

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker while it lives."""
        return self._worker.pid

    @property
    def restarts(self) -> int:
        """Restarts of the worker so far."""
        return self._worker.restarts

    async def start(self, lifecycle: Lifecycle) -> None:
        """Starts the worker and waits until its models are loaded.

        Raises:
            AntiphonError: a model is missing or does not load, or it takes too long.
        """
        self._lifecycle = lifecycle
        self._ready = asyncio.get_running_loop().create_future()
        await self._worker.start()
        try:
            ready = await asyncio.wait_for(self._ready, self.settings.worker_start_seconds)
        except TimeoutError:
            await self._worker.stop(1.0)
            raise Unavailable(
                f"the recogniser was not ready after {self.settings.worker_start_seconds:g} s",
                reason="BOOT_FAILED",
            ) from None
        except AntiphonError:
            await self._worker.stop(1.0)
            raise
        log.info("recogniser_ready", detector=ready.detector, seconds=round(ready.load_seconds, 2))

    async def stop(self, grace: float) -> None:
        """Ends every session and the worker."""
        error = Unavailable("the service is draining", reason="DRAINING")
        self._end_sessions(error)
        await self._worker.stop(grace)

    @property
    def recognizer(self) -> wire.RecognizerInfo:
        """What the loaded recogniser can do.

        Raises:
            Unavailable: it is not loaded, or its process is being restarted.
        """
        if self._loss is not None:
            raise self._loss
        if self._recognizer is None:
            raise Unavailable("the recogniser is loading", reason="BOOTING", retry_after=1.0)
        return self._recognizer

    @property
    def lifecycle(self) -> Lifecycle:
        """Of the process; there from ``start`` on."""
        assert self._lifecycle is not None
        return self._lifecycle

    @contextmanager
    def stream_session(
        self, options: wire.StreamOptions, on_consumed: Callable[[int], None] | None = None
    ) -> Iterator[Session]:
        """A session of a live stream; the worker forgets the stream afterwards.

        Args:
            options: of the stream, which is opened.
            on_consumed: told how many bytes of audio the worker has taken.

        Raises:
            ResourceExhausted: max_streams are open.
        """
        limit = self.settings.max_streams
        with self._session(self._streams, limit, wire.CloseStream, on_consumed) as session:
            session.send(wire.OpenStream(session.number, options))
            yield session

    @contextmanager
    def file_session(self) -> Iterator[Session]:
        """A session of a file job; an unfinished job is cancelled afterwards.

        Raises:
            ResourceExhausted: max_files are open.
        """
        with self._session(self._files, self.settings.max_files, wire.CancelFile) as session:
            yield session

    def gauges(self) -> dict[str, float]:
        """Present values by name: streams and files open, and the worker's totals."""
        values: dict[str, float] = {
            "recognition_streams": len(self._streams),
            "recognition_files": len(self._files),
            "recognition_worker_restarts": self.restarts,
        }
        seen = self._gauges
        if seen is not None:
            values |= worker_values(seen)
        return values

    @contextmanager
    def _session(
        self,
        sessions: dict[int, Session],
        limit: int,
        close: type[wire.CloseStream] | type[wire.CancelFile],
        on_consumed: Callable[[int], None] | None = None,
    ) -> Iterator[Session]:
        _ = self.recognizer
        if len(sessions) >= limit:
            raise ResourceExhausted(
                f"{limit} calls of this kind are open already",
                reason="SLOTS_FULL",
                metadata={"limit": str(limit)},
                retry_after=1.0,
            )
        session = Session(next(self._numbers), self._worker.send, on_consumed)
        sessions[session.number] = session
        try:
            yield session
        finally:
            # A session that ended lost its worker; the next worker does not know it.
            if sessions.pop(session.number, None) is not None:
                self._worker.send(close(session.number))

    def _on_message(self, message: object) -> None:
        match message:
            case wire.WorkerReady():
                self._on_ready(message)
            case wire.WorkerFailed(failure=failure):
                log.error("recogniser_failed", problem=failure.message)
                if self._ready is not None and not self._ready.done():
                    self._ready.set_exception(error_of(failure))
            case WorkerGauges():
                self._gauges = message
                self._publish_gauges()
            case wire.FileSegment() | wire.FileFinished() | wire.FileFailed():
                self._deliver(self._files, message.job, message)
            case (
                wire.StreamReady()
                | wire.StreamFailed()
                | wire.Consumed()
                | wire.Started()
                | wire.Stopped()
                | wire.Partial()
                | wire.Final()
                | wire.UtteranceFailed()
                | wire.StreamFinished()
            ):
                if isinstance(message, wire.Final):
                    self._final_delay.observe(message.delay_ms / 1000)
                elif isinstance(message, wire.StreamReady) and message.detector_fallback:
                    metrics.fallback("voice_activity_detector", "silero_unavailable")
                self._deliver(self._streams, message.stream, message)
            case _:
                raise TypeError(f"unexpected message {type(message).__name__}")

    def _publish_gauges(self) -> None:
        for name, value in self.gauges().items():
            metrics.gauge(name, GAUGES[name]).set(value)

    def _on_ready(self, message: wire.WorkerReady) -> None:
        self._recognizer = message.recognizer
        self._loss = None
        if message.detector != "silero":
            metrics.fallback("voice_activity_detector", "silero_unavailable")
        if self._lifecycle is not None:
            self._lifecycle.recovered(_COMPONENT)
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(message)

    def _deliver(self, sessions: dict[int, Session], number: int, message: object) -> None:
        session = sessions.get(number)
        if session is None:
            return
        match message:
            case wire.StreamFailed(failure=failure) | wire.FileFailed(failure=failure):
                session.end(error_of(failure))
            case _:
                session.deliver(message)

    def _on_exit(self, record: WorkerExit) -> None:
        self._loss = error = worker_died(record.description, will_restart=record.will_restart)
        self._end_sessions(error)
        if self._ready is not None and not self._ready.done() and not record.will_restart:
            self._ready.set_exception(error)
        if self._lifecycle is not None:
            fate = "restarting" if record.will_restart else "given up"
            self._lifecycle.degraded(_COMPONENT, f"{record.description}, {fate}")

    def _end_sessions(self, error: AntiphonError) -> None:
        sessions = [*self._streams.values(), *self._files.values()]
        self._streams.clear()
        self._files.clear()
        for session in sessions:
            session.end(error)


def _start_message(settings: RecognitionSettings) -> wire.Start:
    return wire.Start(
        model_dir=str(settings.model_dir) if settings.model_dir is not None else "",
        compute_type=settings.compute_type,
        device=settings.device,
        dtype=settings.dtype,
        lanes=settings.lanes,
        threads=settings.threads,
        beam_size=settings.beam_size,
        speculative_ms=settings.speculative_ms,
        partial_interval_ms=settings.partial_interval_ms,
        max_utterance_seconds=settings.max_utterance_seconds,
        max_file_seconds=settings.max_file_seconds,
        turn_model=str(settings.turn_model) if settings.turn_model is not None else "",
        speaker_model=str(settings.speaker_model) if settings.speaker_model is not None else "",
        same_voice=settings.same_voice,
    )
