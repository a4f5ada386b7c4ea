"""Synthesis as one thing to start and to stop: model processes, phonemizer, slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from antiphon_core.ipc.worker import Worker, WorkerProcess
from antiphon_core.lifecycle import Lifecycle

from antiphon_vocoder.codec_client import MODEL_GROUP
from antiphon_vocoder.codec_runtime import CodecRuntime
from antiphon_vocoder.config import VocoderSettings
from antiphon_vocoder.engine_client import SpeechEngine
from antiphon_vocoder.messages import EngineConfig
from antiphon_vocoder.metrics import SpeechMetrics
from antiphon_vocoder.slots import SlotPool
from antiphon_vocoder.stored_voices import StoredVoices
from antiphon_vocoder.stream_session import SessionLimits
from antiphon_vocoder.text.phonemizer import Phonemizer
from antiphon_vocoder.voice_creation import VoiceMaker
from antiphon_vocoder.voices import MODEL, VoiceCatalog

_GAUGE_SECONDS = 1.0


class SpeechRuntime:
    """What the calls of VocoderService share.

    Args:
        settings: the service's settings.
        catalog: all voices.
        lifecycle: told of boot phases and of lost workers.
        make_worker: starts worker processes; tests pass another.
    """

    def __init__(
        self,
        settings: VocoderSettings,
        catalog: VoiceCatalog,
        lifecycle: Lifecycle,
        make_worker: Callable[..., Worker] = WorkerProcess,
    ) -> None:
        self.catalog = catalog
        self.metrics = SpeechMetrics()
        self.slots = SlotPool(settings.slot_count, settings.queue_count)
        self.limits = SessionLimits(
            idle=settings.stream_idle_s,
            progress=settings.progress_s,
            longest=settings.max_stream_s,
        )
        config = EngineConfig(
            voices=[voice.file for voice in catalog.voices],
            workers=settings.worker_count,
            threads=settings.hop_threads,
            lead_seconds=settings.lead_s,
            gain=settings.gain,
        )
        self.engine = SpeechEngine(config, lifecycle, self.metrics, make_worker)
        self.phonemizer = Phonemizer(lifecycle, self.metrics, make_worker)
        self.codec = CodecRuntime(settings, lifecycle, self.metrics, make_worker)
        self.voices = StoredVoices(settings.voice_store_dir, settings.voices_per_tenant)
        self.voice_maker = VoiceMaker(
            self.voices, self.codec, self.limits, require_consent=settings.require_consent
        )
        self._gauges: asyncio.Task[None] | None = None

    @property
    def worker_restarts(self) -> int:
        """Restarts of all workers so far."""
        return self.engine.restarts + self.phonemizer.restarts + self.codec.restarts

    async def start(self) -> None:
        """Starts the workers and waits until they are warm.

        Raises:
            FailedPrecondition: one cannot boot, or the voice store cannot be opened.
            Internal: espeak-ng lacks the default voice's language.
        """
        await asyncio.gather(self.engine.start(), self.phonemizer.start(), self.codec.start())
        await self.voices.start()
        await self.phonemizer.phonemize(["ready"], self.catalog.default.espeak_voice)
        self._gauges = asyncio.create_task(self._show_gauges(), name="speech-gauges")

    async def stop(self, grace: float) -> None:
        """Ends the workers."""
        if self._gauges is not None:
            self._gauges.cancel()
        await asyncio.gather(
            self.voices.stop(),
            self.engine.stop(grace),
            self.phonemizer.stop(grace),
            self.codec.stop(grace),
        )

    @property
    def pools(self) -> dict[str, SlotPool]:
        """The slots that are served, by the model or group that shares them."""
        pools = {MODEL: self.slots}
        if self.codec.engine is not None:
            pools[MODEL_GROUP] = self.codec.slots
        return pools

    @property
    def resident_bytes(self) -> int:
        """Resident memory of the model processes."""
        codec = self.codec.engine.resident_bytes if self.codec.engine is not None else 0
        return self.engine.resident_bytes + codec

    def utilizations(self) -> dict[str, float]:
        """How full the service is, 0 to 1, for load reports: its fullest slots."""
        return {"slot_utilization": max(pool.utilization for pool in self.pools.values())}

    async def _show_gauges(self) -> None:
        while True:
            for model, pool in self.pools.items():
                self.metrics.slots.labels(model, "total").set(pool.total)
                self.metrics.slots.labels(model, "busy").set(pool.busy)
                self.metrics.queued.labels(model).set(pool.queued)
                self.metrics.slot_utilization.labels(model).set(pool.utilization)
            await asyncio.sleep(_GAUGE_SECONDS)
