"""Uploads that stop half-way do not hold a place of Recognize."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from antiphon.vocoder.v1 import recognition_service_pb2 as pb
from antiphon_core.errors import DeadlineExceeded
from antiphon_core.lifecycle import Lifecycle
from antiphon_vocoder.recognition.config import RecognitionSettings
from antiphon_vocoder.recognition.service import RecognitionRuntime
from antiphon_vocoder.recognition.servicer import RecognitionServicer

from tests.unit.recognition.test_multiplex import HandWorker

CONFIG = pb.RecognizeRequest(config=pb.RecognitionConfig())
AUDIO = pb.RecognizeRequest(audio=bytes(1000))


@pytest.mark.parametrize("sent", [[], [CONFIG], [CONFIG, AUDIO]])
async def test_an_upload_that_stops_is_ended(sent: list[pb.RecognizeRequest]) -> None:
    settings = RecognitionSettings(stream_idle_seconds=0.1)
    worker: Any = HandWorker
    runtime = RecognitionRuntime(settings, worker=worker)
    await runtime.start(Lifecycle())

    async def requests() -> AsyncIterator[pb.RecognizeRequest]:
        for request in sent:
            yield request
        await asyncio.Event().wait()

    context: Any = None
    with pytest.raises(DeadlineExceeded) as error:
        async for _ in RecognitionServicer(runtime).Recognize(requests(), context):
            pass
    assert error.value.reason == "INPUT_IDLE"
    assert runtime.gauges()["recognition_files"] == 0
