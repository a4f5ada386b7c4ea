"""A caller of StreamingRecognizeMany."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from antiphon.vocoder.v1 import recognition_service_pb2 as pb
from antiphon_core.rpc.errors import from_status

from tests.rpc.recognition.live import manual

Many = pb.StreamingRecognizeManyRequest
QUIET = pb.StartRecognition(
    config=pb.RecognitionConfig(turn_detection=manual(), skip_transcription=True)
)
ENDS = ("finished", "error")


def act(name: str, **action: Any) -> Many:
    return Many(actions=[pb.StreamAction(stream_id=name, **action)])


def end(name: str) -> Many:
    return act(name, end_input=pb.EndRecognitionInput())


def together(*messages: Many) -> Many:
    """One message with the actions of several."""
    return Many(actions=[action for message in messages for action in message.actions])


class Caller:
    """One call: what was told to each stream, and the credit that came back."""

    def __init__(self, stub: Any) -> None:
        self.call = stub.StreamingRecognizeMany()
        self.heard: dict[str, list[tuple[str, Any]]] = defaultdict(list)
        self.credit: dict[str, int] = defaultdict(int)

    async def send(self, *requests: Many) -> None:
        for request in requests:
            await self.call.write(request)

    async def read_until_ended(self, *names: str) -> None:
        """Reads until each of these streams has had its last event."""
        async with asyncio.timeout(30):
            while any(self.last(name) not in ENDS for name in names):
                self.take(await self.call.read())

    def last(self, name: str) -> str:
        return self.heard[name][-1][0] if self.heard[name] else ""

    def take(self, message: pb.StreamingRecognizeManyResponse) -> None:
        for event in message.events:
            assert self.last(event.stream_id) not in ENDS
            if event.HasField("error"):
                self.heard[event.stream_id].append(("error", from_status(event.error)))
            else:
                kind = event.message.WhichOneof("message")
                item = getattr(event.message, kind)
                self.heard[event.stream_id].append((kind, item))
        for name, count in zip(message.credit_stream_ids, message.credit_bytes, strict=True):
            self.credit[name] += count
