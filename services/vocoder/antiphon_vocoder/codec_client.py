"""The front's side of the codec process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from antiphon_core.errors import AntiphonError, Internal, Unavailable
from antiphon_core.ipc.worker import WorkerProcess
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.logs import get_logger

from antiphon_vocoder.codec_messages import (
    ClearStream,
    CloseCodecStream,
    CodecDelivered,
    CodecEngineConfig,
    CodecEngineFailed,
    CodecEngineOutbound,
    CodecEngineReady,
    CodecInfo,
    CodecPhase,
    CodecStats,
    FlushStream,
    HopsFailed,
    OpenCodecStream,
    PushUnits,
    Stage,
    StepDone,
    StreamsEnded,
)
from antiphon_vocoder.metrics import SpeechMetrics
from antiphon_vocoder.model_process import (
    RESTART_RETRY_SECONDS,
    ModelProcess,
    WorkerFactory,
)

MODEL_GROUP = "codec"
"""Label and slot group of all codecs together."""

log = get_logger("vocoder.codec")


@dataclass(frozen=True)
class CodecOutput:
    """One hop of one stream, or its end."""

    epoch: int
    frames: int
    data: bytes
    last: bool


class OnSlots(Protocol):
    """Hears how many streams the process takes."""

    def __call__(self, count: int, *, again: bool) -> None: ...


CodecSink = Callable[[CodecOutput | AntiphonError], None]


class CodecStream:
    """One stream's way to the codec process; made by ``CodecEngine.open``."""

    def __init__(self, engine: CodecEngine, slot: int, generation: int) -> None:
        self._engine = engine
        self._slot = slot
        self._generation = generation

    def push(self, data: bytes) -> None:
        """Queues whole frames of codes, or samples; see ``codec_messages``."""
        self._engine.send(PushUnits(slot=self._slot, generation=self._generation, data=data))

    def flush(self, *, last: bool) -> None:
        """Has what is buffered run in short hops; with ``last`` nothing follows."""
        self._engine.send(FlushStream(slot=self._slot, generation=self._generation, last=last))

    def clear(self, epoch: int) -> None:
        """Drops what was not run; output from then on has this epoch."""
        self._engine.send(ClearStream(slot=self._slot, generation=self._generation, epoch=epoch))

    def delivered(self, frame_count: int) -> None:
        """Tells how many frames of output, over all epochs, have left for the client."""
        self._engine.send(
            CodecDelivered(slot=self._slot, generation=self._generation, frame_count=frame_count)
        )

    def close(self) -> None:
        """Ends the stream there; the sink hears nothing more."""
        self._engine.close(self._slot, self._generation)


class CodecEngine(ModelProcess[CodecOutput]):
    """Streams of the codec process.

    Args:
        config: sent at every start of the process.
        lifecycle: told of boot phases, and degraded while the process is away.
        on_slots: called when the process has measured how many streams it takes, with ``again``
            after a restart.
        make_worker: takes WorkerProcess's arguments; tests pass another.

    Attributes:
        codecs: those that it serves, by name, the default first; set once it is ready.
    """

    def __init__(
        self,
        config: CodecEngineConfig,
        lifecycle: Lifecycle,
        metrics: SpeechMetrics,
        on_slots: OnSlots,
        make_worker: WorkerFactory = WorkerProcess,
    ) -> None:
        super().__init__(
            component="codec",
            title="codec process",
            module="antiphon_vocoder.codec_engine",
            inbound=CodecEngineOutbound,
            config=config,
            lifecycle=lifecycle,
            metrics=metrics,
            make_worker=make_worker,
        )
        self.codecs: dict[str, CodecInfo] = {}
        self._slots = 0
        self._on_slots = on_slots

    async def open(
        self,
        slot: int,
        generation: int,
        *,
        codec: str,
        stage: Stage,
        codebooks: int,
        sink: CodecSink,
    ) -> CodecStream:
        """Begins a stream in a slot; a process that is being restarted is waited for.

        Args:
            sink: called on the event loop with each hop, or with the error that ends the stream.

        Raises:
            Unavailable: the restart takes too long, or left fewer slots.
        """
        opening = OpenCodecStream(
            slot=slot, generation=generation, codec=codec, stage=stage, codebooks=codebooks
        )
        await self._open(slot, generation, opening, sink)
        if slot >= self._slots:
            self.close(slot, generation)
            raise Unavailable(
                "the codec process has fewer slots since its restart",
                reason="OVERLOADED",
                retry_after=RESTART_RETRY_SECONDS,
            )
        return CodecStream(self, slot, generation)

    def _closing(self, slot: int, generation: int) -> CloseCodecStream:
        return CloseCodecStream(slot=slot, generation=generation)

    def _on_message(self, message: Any) -> None:
        if isinstance(message, StepDone):
            self._on_step(message)
        elif isinstance(message, StreamsEnded):
            for slot, generation, epoch in message.streams:
                self._route(slot, generation, CodecOutput(epoch, 0, b"", True))
        elif isinstance(message, HopsFailed):
            self._on_failed_hops(message)
        elif isinstance(message, CodecStats):
            self._on_stats(message)
        elif isinstance(message, CodecPhase):
            self._on_phase(message.phase)
        elif isinstance(message, CodecEngineReady):
            self._note_ready(message)
            self._on_ready()
        elif isinstance(message, CodecEngineFailed):
            self._on_failed_boot(message.error)

    def _on_step(self, message: StepDone) -> None:
        labels = (message.codec, message.stage)
        self._metrics.hop_seconds.labels(*labels).observe(message.seconds)
        self._metrics.step_rows.labels(*labels).observe(len(message.hops))
        data = memoryview(message.data)
        for hop in message.hops:
            if message.stage is Stage.DECODE:
                self._metrics.slack.labels(message.codec).observe(max(0.0, hop.slack_seconds))
            part = bytes(data[hop.offset : hop.offset + hop.size])
            output = CodecOutput(hop.epoch, hop.frames, part, hop.last)
            self._route(hop.slot, hop.generation, output)

    def _on_failed_hops(self, message: HopsFailed) -> None:
        log.error("codec_hops_failed", streams=len(message.streams), error=message.error)
        self._metrics.failed_hops.labels(MODEL_GROUP).inc(len(message.streams))
        for slot, generation in message.streams:
            error = Internal("the codec failed on this input; the log has the details")
            self._route(slot, generation, error)

    def _on_stats(self, message: CodecStats) -> None:
        metrics = self._metrics
        metrics.cancelled_hops.labels(MODEL_GROUP).inc(message.cancelled_hops)
        metrics.slot_resets.labels(MODEL_GROUP).inc(message.resets)
        metrics.retried_steps.labels(MODEL_GROUP).inc(message.retried_steps)
        metrics.graph_misses.labels(MODEL_GROUP).inc(message.graph_misses)
        metrics.engine_memory.labels("codec").set(message.resident_bytes)
        metrics.device_memory.labels("codec").set(message.device_bytes)
        self.resident_bytes = message.resident_bytes

    def _note_ready(self, message: CodecEngineReady) -> None:
        self.codecs = {codec.name: codec for codec in message.codecs}
        again = self._slots > 0
        self._slots = min(self._slots, message.slots) if again else message.slots
        self._on_slots(self._slots, again=again)
        log.info(
            "codec_engine_ready",
            codecs=list(self.codecs),
            slots=message.slots,
            bound=message.bound,
            base_bytes=message.base_bytes,
            stream_bytes=message.stream_bytes,
            rungs=message.rungs,
            recorded=message.recorded,
        )
