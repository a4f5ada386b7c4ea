"""The front's side of the speech model process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from antiphon_core.errors import AntiphonError, FailedPrecondition, Internal, Unavailable
from antiphon_core.ipc.worker import Worker, WorkerExit, WorkerProcess
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.logs import get_logger

from antiphon_vocoder.messages import (
    CloseStream,
    Delivered,
    DropClauses,
    EngineConfig,
    EngineFailed,
    EngineOutbound,
    EnginePhase,
    EngineReady,
    EngineStats,
    OpenStream,
    SpeakClause,
    SpeechAudio,
    Stop,
    StreamFailed,
)
from antiphon_vocoder.metrics import SpeechMetrics
from antiphon_vocoder.voices import MODEL

COMPONENT = "speech"
_RESTART_RETRY_SECONDS = 2.0
_RESTART_WAIT_SECONDS = 30.0

Sink = Callable[[SpeechAudio | AntiphonError], None]
WorkerFactory = Callable[..., Worker]

log = get_logger("vocoder.engine")


class EngineStream:
    """One stream's way to the model process; made by ``SpeechEngine.open``."""

    def __init__(self, engine: SpeechEngine, slot: int, generation: int) -> None:
        self._engine = engine
        self._slot = slot
        self._generation = generation

    def speak(
        self,
        clause: int,
        phoneme_ids: Sequence[int],
        *,
        word_ends: Sequence[int],
        pause_seconds: float,
        first: bool,
    ) -> None:
        """Queues a clause; its audio comes to the sink in order."""
        self._engine.send(
            SpeakClause(
                slot=self._slot,
                generation=self._generation,
                clause=clause,
                phoneme_ids=list(phoneme_ids),
                pause_seconds=pause_seconds,
                first=first,
                word_ends=list(word_ends),
            )
        )

    def drop_through(self, clause: int) -> None:
        """Drops clauses up to this index; audio of them may still be on its way."""
        self._engine.send(DropClauses(slot=self._slot, generation=self._generation, clause=clause))

    def delivered(self, sample_count: int) -> None:
        """Tells how many samples, at the voice's rate, have left for the client in all."""
        self._engine.send(
            Delivered(slot=self._slot, generation=self._generation, sample_count=sample_count)
        )

    def close(self) -> None:
        """Ends the stream there; the sink hears nothing more."""
        self._engine.close(self._slot, self._generation)


class SpeechEngine:
    """Starts the model process, routes its messages, survives its death.

    Args:
        config: sent at every start of the process.
        lifecycle: told of boot phases, and degraded while the process is away.
        make_worker: takes WorkerProcess's arguments; tests pass another.
    """

    def __init__(
        self,
        config: EngineConfig,
        lifecycle: Lifecycle,
        metrics: SpeechMetrics,
        make_worker: WorkerFactory = WorkerProcess,
    ) -> None:
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._streams: dict[int, tuple[int, Sink]] = {}
        self._ready = asyncio.Event()
        self._failure = ""
        self._booted = False
        self.cost = 0.0
        """Measured seconds of work a second of audio; 0 before the first start."""
        self.resident_bytes = 0
        self._worker = make_worker(
            name=COMPONENT,
            module="antiphon_vocoder.engine",
            inbound=EngineOutbound,
            on_message=self._on_message,
            on_exit=self._on_exit,
            start_message=config,
            stop_message=Stop(),
        )

    @property
    def pid(self) -> int | None:
        """Process id while alive."""
        return self._worker.pid

    @property
    def restarts(self) -> int:
        """Restarts so far."""
        return self._worker.restarts

    @property
    def stream_count(self) -> int:
        """Open streams."""
        return len(self._streams)

    async def start(self) -> None:
        """Starts the process and waits until it is loaded and warm.

        Raises:
            FailedPrecondition: it cannot boot; the message says why.
        """
        await self._worker.start()
        await self._ready.wait()
        if self._failure:
            raise FailedPrecondition(
                f"the speech model process cannot boot: {self._failure}", reason="BOOT_FAILED"
            )
        self._booted = True

    async def stop(self, grace: float) -> None:
        """Ends the process."""
        await self._worker.stop(grace)

    async def open(
        self,
        slot: int,
        generation: int,
        *,
        voice: str,
        speed: float,
        noiseless: bool,
        sink: Sink,
    ) -> EngineStream:
        """Begins a stream in a slot; a process that is being restarted is waited for.

        Args:
            sink: called on the event loop with each message, or with the error that ends the
                stream.

        Raises:
            Unavailable: the restart takes too long.
        """
        try:
            async with asyncio.timeout(_RESTART_WAIT_SECONDS):
                await self._ready.wait()
        except TimeoutError:
            raise Unavailable(
                "the speech model process is starting again",
                reason="NO_BACKEND",
                retry_after=_RESTART_RETRY_SECONDS,
            ) from None
        self.send(
            OpenStream(
                slot=slot, generation=generation, voice=voice, speed=speed, noiseless=noiseless
            )
        )
        self._streams[slot] = (generation, sink)
        return EngineStream(self, slot, generation)

    def send(self, message: object) -> None:
        """Queues a message for the process; what a dead one misses, ``on_exit`` has answered."""
        if self._ready.is_set():
            self._worker.send(message)

    def close(self, slot: int, generation: int) -> None:
        """Ends a stream; a second call does nothing."""
        known = self._streams.get(slot)
        if known is not None and known[0] == generation:
            del self._streams[slot]
            self.send(CloseStream(slot=slot, generation=generation))

    def _on_message(self, message: Any) -> None:
        if isinstance(message, SpeechAudio):
            self._note(message)
            self._route(message.slot, message.generation, message)
        elif isinstance(message, StreamFailed):
            log.error("speech_hop_failed", slot=message.slot, error=message.error)
            error = Internal("the speech model failed on this input; the log has the details")
            self._route(message.slot, message.generation, error)
        elif isinstance(message, EngineStats):
            self._metrics.cancelled_hops.inc(message.cancelled_hops)
            self._metrics.engine_memory.set(message.resident_bytes)
            self.resident_bytes = message.resident_bytes
        elif isinstance(message, EnginePhase):
            if not self._booted:
                self._lifecycle.booting(f"speech_{message.phase}")
        elif isinstance(message, EngineReady):
            self._on_ready(message)
        elif isinstance(message, EngineFailed):
            self._failure = message.error
            self._ready.set()

    def _on_ready(self, message: EngineReady) -> None:
        self.cost = message.cost
        log.info(
            "speech_engine_ready",
            voice=message.voice,
            cost=round(message.cost, 4),
            windowed=message.windowed,
            whole_reason=message.whole_reason,
        )
        self._ready.set()
        self._lifecycle.recovered(COMPONENT)

    def _note(self, message: SpeechAudio) -> None:
        metrics = self._metrics
        metrics.hop_seconds.labels(MODEL, "decode").observe(message.hop_seconds)
        if message.encode_seconds:
            metrics.hop_seconds.labels(MODEL, "encode").observe(message.encode_seconds)
        metrics.slack.labels(MODEL).observe(max(0.0, message.slack_seconds))
        metrics.clipped_samples.labels(MODEL).inc(message.clipped_count)

    def _route(self, slot: int, generation: int, message: SpeechAudio | AntiphonError) -> None:
        known = self._streams.get(slot)
        if known is not None and known[0] == generation:
            known[1](message)

    def _on_exit(self, exit_record: WorkerExit) -> None:
        streams, self._streams = self._streams, {}
        self._ready.clear()
        for _, sink in streams.values():
            sink(
                Unavailable(
                    f"the speech model process died ({exit_record.description})",
                    reason="WORKER_DIED",
                    retry_after=_RESTART_RETRY_SECONDS if exit_record.will_restart else None,
                )
            )
        if not self._booted:
            if not self._failure:
                self._failure = f"it died with {exit_record.description}"
            self._ready.set()
        elif exit_record.will_restart:
            self._metrics.worker_restarts.labels(COMPONENT).inc()
            self._lifecycle.degraded(COMPONENT, f"restarting after {exit_record.description}")
        else:
            self._lifecycle.failed(
                f"the speech model process died too often, last by {exit_record.description}"
            )
