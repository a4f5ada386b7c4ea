"""The front's side of the speech model process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from antiphon_core.errors import AntiphonError, Internal
from antiphon_core.ipc.worker import WorkerProcess
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
    StreamFailed,
)
from antiphon_vocoder.metrics import SpeechMetrics
from antiphon_vocoder.model_process import ModelProcess, WorkerFactory
from antiphon_vocoder.voices import MODEL

Sink = Callable[[SpeechAudio | AntiphonError], None]

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


class SpeechEngine(ModelProcess[SpeechAudio]):
    """Streams of the speech model process.

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
        super().__init__(
            component="speech",
            title="speech model process",
            module="antiphon_vocoder.engine",
            inbound=EngineOutbound,
            config=config,
            lifecycle=lifecycle,
            metrics=metrics,
            make_worker=make_worker,
        )
        self.cost = 0.0
        """Measured seconds of work a second of audio; 0 before the first start."""

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
        opening = OpenStream(
            slot=slot, generation=generation, voice=voice, speed=speed, noiseless=noiseless
        )
        await self._open(slot, generation, opening, sink)
        return EngineStream(self, slot, generation)

    def _closing(self, slot: int, generation: int) -> CloseStream:
        return CloseStream(slot=slot, generation=generation)

    def _on_message(self, message: Any) -> None:
        if isinstance(message, SpeechAudio):
            self._note(message)
            self._route(message.slot, message.generation, message)
        elif isinstance(message, StreamFailed):
            log.error("speech_hop_failed", slot=message.slot, error=message.error)
            error = Internal("the speech model failed on this input; the log has the details")
            self._route(message.slot, message.generation, error)
        elif isinstance(message, EngineStats):
            self._metrics.cancelled_hops.labels(MODEL).inc(message.cancelled_hops)
            self._metrics.engine_memory.labels("speech").set(message.resident_bytes)
            self.resident_bytes = message.resident_bytes
        elif isinstance(message, EnginePhase):
            self._on_phase(message.phase)
        elif isinstance(message, EngineReady):
            self._note_ready(message)
            self._on_ready()
        elif isinstance(message, EngineFailed):
            self._on_failed_boot(message.error)

    def _note_ready(self, message: EngineReady) -> None:
        self.cost = message.cost
        log.info(
            "speech_engine_ready",
            voice=message.voice,
            cost=round(message.cost, 4),
            windowed=message.windowed,
            whole_reason=message.whole_reason,
        )

    def _note(self, message: SpeechAudio) -> None:
        metrics = self._metrics
        metrics.hop_seconds.labels(MODEL, "decode").observe(message.hop_seconds)
        if message.encode_seconds:
            metrics.hop_seconds.labels(MODEL, "encode").observe(message.encode_seconds)
        metrics.slack.labels(MODEL).observe(max(0.0, message.slack_seconds))
        metrics.clipped_samples.labels(MODEL).inc(message.clipped_count)
