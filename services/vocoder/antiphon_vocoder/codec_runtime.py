"""Codecs as one thing to start and to stop: their process, their slots, what they are called."""

from __future__ import annotations

from collections.abc import Callable

from antiphon_core.errors import FailedPrecondition
from antiphon_core.ipc.worker import Worker, WorkerProcess
from antiphon_core.lifecycle import Lifecycle

from antiphon_vocoder.codec_client import CodecEngine
from antiphon_vocoder.codec_messages import CodecEngineConfig
from antiphon_vocoder.codes import CodecCatalog
from antiphon_vocoder.config import VocoderSettings, usable_cores
from antiphon_vocoder.metrics import SpeechMetrics
from antiphon_vocoder.slots import SlotPool

_QUEUE_PER_SLOT = 4
_GIB = 1 << 30


class CodecRuntime:
    """What the calls that use codecs share. Without codecs nothing is started.

    Args:
        settings: the service's settings.
        lifecycle: told of boot phases and of a lost process.
        make_worker: starts the process; tests pass another.
    """

    def __init__(
        self,
        settings: VocoderSettings,
        lifecycle: Lifecycle,
        metrics: SpeechMetrics,
        make_worker: Callable[..., Worker] = WorkerProcess,
    ) -> None:
        self._settings = settings
        self.catalog = CodecCatalog({}, {})
        self.slots = SlotPool(1, 0)
        self.engine: CodecEngine | None = None
        if settings.codecs:
            self.engine = CodecEngine(
                _engine_config(settings), lifecycle, metrics, self._on_slots, make_worker
            )

    @property
    def restarts(self) -> int:
        """Restarts of the process so far."""
        return self.engine.restarts if self.engine is not None else 0

    async def start(self) -> None:
        """Starts the process and waits until it is measured and warm.

        Raises:
            FailedPrecondition: it cannot boot, or a voice is bound to no codec.
        """
        if self.engine is None:
            return
        await self.engine.start()
        known = self.engine.codecs
        for voice, codec in self._settings.codec_voices.items():
            if codec not in known:
                raise FailedPrecondition(
                    f"the voice {voice} is bound to {codec!r}, which is no codec",
                    field="codec_voices",
                    allowed=list(known),
                )
        bound = {voice: (codec,) for voice, codec in self._settings.codec_voices.items()}
        self.catalog = CodecCatalog(known, bound)

    async def stop(self, grace: float) -> None:
        """Ends the process."""
        if self.engine is not None:
            await self.engine.stop(grace)

    def _on_slots(self, count: int, *, again: bool) -> None:
        """The process has measured how many streams it takes."""
        if again:
            self.slots.shrink(count)
        else:
            queue = self._settings.queue_limit or _QUEUE_PER_SLOT * count
            self.slots = SlotPool(count, queue)


def _engine_config(settings: VocoderSettings) -> CodecEngineConfig:
    return CodecEngineConfig(
        codecs=settings.codecs,
        device=settings.device,
        precision=settings.dtype,
        threads=settings.codec_threads or usable_cores(),
        slots=settings.codec_slots,
        memory_bytes=int(settings.memory_gib * _GIB),
        rungs=list(settings.codec_rungs),
        decode_ramp=list(settings.decode_ramp),
        encode_ramp=list(settings.encode_ramp),
        peer_wait_seconds=settings.peer_wait_ms / 1000,
        lead_seconds=settings.lead_s,
    )
