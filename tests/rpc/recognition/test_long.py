"""Hours: nothing is invented in ten minutes of noise, and memory follows one utterance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from antiphon.vocoder.v1 import recognition_service_pb2 as pb

from tests.rpc.recognition.conftest import RecognitionServer
from tests.rpc.recognition.live import Request, audio_requests, of, recognise
from tests.unit.recognition.piper_speech import SENTENCES, pcm16, silence, speak


def music(seconds: int) -> np.ndarray:
    """Notes of a plucked string, each 0.4 s."""
    random = np.random.default_rng(4)
    scale = (220.0, 246.9, 261.6, 293.7, 329.6, 349.2, 392.0, 440.0)
    time = np.arange(6400) / 16000
    notes = []
    for pitch in random.choice(scale, seconds * 10 // 4):
        wave = sum(np.sin(2 * np.pi * pitch * h * time) / h for h in range(1, 8))
        notes.append(0.2 * wave * np.exp(-time * 5))
    return np.concatenate(notes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["silence", "noise", "music"])
async def test_ten_minutes_without_speech_have_no_text(stub: Any, name: str) -> None:
    count = 600 * 16000
    sound = {
        "silence": lambda: np.zeros(count),
        "noise": lambda: np.random.default_rng(1).normal(0, 0.1, count),
        "music": lambda: music(600),
    }[name]()
    events = await recognise(stub, audio_requests(pcm16(sound.astype(np.float32))))
    assert "".join(final.text for final in of(events, "final")) == ""


@pytest.mark.soak
async def test_an_hour_of_conversation_leaves_memory_flat(
    stub: Any, recognition_server: RecognitionServer
) -> None:
    minute = np.concatenate([speak(SENTENCES[0]), silence(2), speak(SENTENCES[1])])
    data = pcm16(np.concatenate([minute, silence(60 - len(minute) / 16000)]))
    resident: list[float] = []

    async def outgoing() -> AsyncIterator[Request]:
        yield Request(config=pb.RecognitionConfig())
        for _ in range(60):
            for request in audio_requests(data, 64_000):
                yield request
            await asyncio.sleep(1.2)
            gauges = recognition_server.runtime.gauges()
            resident.append(gauges["recognition_worker_resident_bytes"])

    finals = 0
    async for response in stub.StreamingRecognize(outgoing()):
        finals += response.HasField("final")
    assert finals == 120
    assert max(resident[10:]) <= resident[10] * 1.02
