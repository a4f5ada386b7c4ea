"""Synthesis as one thing to start and to stop: model process, phonemizer, slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from antiphon_core.ipc.worker import Worker, WorkerProcess
from antiphon_core.lifecycle import Lifecycle

from antiphon_vocoder.config import VocoderSettings
from antiphon_vocoder.engine_client import SpeechEngine
from antiphon_vocoder.messages import EngineConfig
from antiphon_vocoder.metrics import SpeechMetrics
from antiphon_vocoder.session import SessionLimits
from antiphon_vocoder.slots import SlotPool
from antiphon_vocoder.text.phonemizer import Phonemizer
from antiphon_vocoder.voices import VoiceCatalog

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
        self._gauges: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts both workers and waits until they are warm.

        Raises:
            FailedPrecondition: one cannot boot.
            Internal: espeak-ng lacks the default voice's language.
        """
        await asyncio.gather(self.engine.start(), self.phonemizer.start())
        await self.phonemizer.phonemize(["ready"], self.catalog.default.espeak_voice)
        self._gauges = asyncio.create_task(self._show_gauges(), name="speech-gauges")

    async def stop(self, grace: float) -> None:
        """Ends both workers."""
        if self._gauges is not None:
            self._gauges.cancel()
        await asyncio.gather(self.engine.stop(grace), self.phonemizer.stop(grace))

    async def _show_gauges(self) -> None:
        while True:
            self.metrics.slots.labels("total").set(self.slots.total)
            self.metrics.slots.labels("busy").set(self.slots.busy)
            self.metrics.queued.set(self.slots.queued)
            await asyncio.sleep(_GAUGE_SECONDS)
