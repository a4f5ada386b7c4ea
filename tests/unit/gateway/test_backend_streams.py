"""Streams of backends that are cancelled while they are being opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from antiphon_gateway.clients.live_recognition import SingleRecognition
from antiphon_gateway.clients.recognition import FileRecognitionStream
from antiphon_gateway.clients.speech import SpeechStream
from antiphon_gateway.clients.stream import CancelledByLeaving
from antiphon_gateway.domain.recognition import RecognitionConfig
from antiphon_gateway.domain.speech import SpeechConfig


class FullCall:
    """A call whose server reads nothing."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.cancels = 0

    async def write(self, message: Any) -> None:
        self.written.append(message)
        await asyncio.Event().wait()

    def cancel(self) -> bool:
        self.cancels += 1
        return True

    def cancelled(self) -> bool:
        return False


@pytest.mark.parametrize(
    "open_on",
    [
        lambda call: SpeechStream(call, SpeechConfig()),
        lambda call: FileRecognitionStream(call, RecognitionConfig()),
        lambda call: SingleRecognition(call, RecognitionConfig()),
    ],
    ids=["speech", "file", "live"],
)
async def test_the_call_is_cancelled_with_its_opening(
    open_on: Callable[[Any], CancelledByLeaving[Any]],
) -> None:
    call = FullCall()

    async def use() -> None:
        async with open_on(call):
            raise AssertionError("the block was entered")

    opening = asyncio.create_task(use())
    while not call.written:
        await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert call.cancels == 1
