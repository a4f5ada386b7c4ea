"""Callers that stop half-way do not hold a place of the service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

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
LIVE = pb.StreamingRecognizeRequest(config=pb.RecognitionConfig())
NO_CONTEXT: Any = None
Request = TypeVar("Request")


async def started() -> RecognitionRuntime:
    worker: Any = HandWorker
    runtime = RecognitionRuntime(RecognitionSettings(stream_idle_seconds=0.1), worker=worker)
    await runtime.start(Lifecycle())
    return runtime


async def stalled(sent: Sequence[Request]) -> AsyncIterator[Request]:
    """These messages, and then nothing, not even the end."""
    for request in sent:
        yield request
    await asyncio.Event().wait()


@pytest.mark.parametrize("sent", [[], [CONFIG], [CONFIG, AUDIO]])
async def test_an_upload_that_stops_is_ended(sent: list[pb.RecognizeRequest]) -> None:
    runtime = await started()
    with pytest.raises(DeadlineExceeded) as error:
        async for _ in RecognitionServicer(runtime).Recognize(stalled(sent), NO_CONTEXT):
            pass
    assert error.value.reason == "INPUT_IDLE"
    assert runtime.gauges()["recognition_files"] == 0


@pytest.mark.parametrize("sent", [[], [LIVE]])
async def test_a_live_stream_that_stops_is_ended(sent: list[pb.StreamingRecognizeRequest]) -> None:
    runtime = await started()
    kinds = []
    with pytest.raises(DeadlineExceeded) as error:
        servicer = RecognitionServicer(runtime)
        async for response in servicer.StreamingRecognize(stalled(sent), NO_CONTEXT):
            kinds.append(response.WhichOneof("message"))
    assert kinds == ["ready"] * len(sent)
    assert error.value.reason == "INPUT_IDLE"
    assert runtime.gauges()["recognition_streams"] == 0
