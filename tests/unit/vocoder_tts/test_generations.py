"""A slot's former stream: what comes of it late reaches nobody, and cannot end the next one."""

from __future__ import annotations

from typing import Any

from antiphon_core.errors import AntiphonError, Internal
from antiphon_core.lifecycle import Lifecycle
from antiphon_vocoder.engine_client import EngineStream, SpeechEngine
from antiphon_vocoder.messages import (
    CloseStream,
    EngineConfig,
    EngineReady,
    SpeechAudio,
    StreamFailed,
)
from antiphon_vocoder.metrics import SpeechMetrics

Heard = list[SpeechAudio | AntiphonError]


class HandWorker:
    """Is ready at once and says what a test has it say."""

    pid = None
    restarts = 0

    def __init__(self, *, on_message: Any, **_: Any) -> None:
        self.say = on_message
        self.told: list[object] = []

    async def start(self) -> None:
        self.say(EngineReady(voice="joe", cost=0.1, windowed=True))

    async def stop(self, grace: float) -> None:
        pass

    def send(self, message: object) -> None:
        self.told.append(message)


def audio(generation: int) -> SpeechAudio:
    return SpeechAudio(
        slot=0, generation=generation, clause=0, samples=b"\0" * 400, clipped_count=0, last=True,
        hop_seconds=0.1, encode_seconds=0.1, slack_seconds=0.0,
    )  # fmt: skip


async def test_only_the_present_stream_of_a_slot_hears_and_is_closed() -> None:
    workers: list[HandWorker] = []

    def make_worker(**wiring: Any) -> Any:
        workers.append(HandWorker(**wiring))
        return workers[-1]

    config = EngineConfig(voices=[], workers=1, threads=1, lead_seconds=1.0, gain=1.0)
    engine = SpeechEngine(config, Lifecycle(), SpeechMetrics(), make_worker)
    await engine.start()
    (worker,) = workers

    async def opened(generation: int, heard: Heard) -> EngineStream:
        return await engine.open(
            0, generation, voice="joe", speed=1.0, noiseless=True, sink=heard.append
        )

    before: Heard = []
    now: Heard = []
    old = await opened(1, before)
    worker.say(audio(1))
    assert before == [audio(1)]
    old.close()
    new = await opened(2, now)
    worker.say(audio(1))
    worker.say(StreamFailed(slot=0, generation=1, error="late"))
    old.close()
    assert (before, now, engine.stream_count) == ([audio(1)], [], 1)
    worker.say(audio(2))
    worker.say(StreamFailed(slot=0, generation=2, error="failed"))
    assert now[0] == audio(2)
    assert isinstance(now[1], Internal)
    new.close()
    new.close()
    closed = [message for message in worker.told if isinstance(message, CloseStream)]
    assert closed == [CloseStream(slot=0, generation=1), CloseStream(slot=0, generation=2)]
