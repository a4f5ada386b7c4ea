"""Shared recognition: order, credit and message sizes under any cut."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from antiphon.vocoder.v1 import recognition_service_pb2 as pb
from antiphon_core.errors import Internal, Unavailable
from antiphon_gateway.clients import recognition_multiplex
from antiphon_gateway.clients.recognition_multiplex import (
    CREDIT_BYTES,
    MESSAGE_BYTES,
    MultiplexedRecognition,
    RecognitionMultiplexer,
)
from antiphon_gateway.domain.recognition import RecognitionConfig
from support.waiting import until

PATTERN = random.Random(5).randbytes(1 << 16)


class Call:
    """A call whose service is a test: it writes when it may, and says what it is given."""

    def __init__(self) -> None:
        self.sent: list[pb.StreamingRecognizeManyRequest] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.answers: asyncio.Queue[Any] = asyncio.Queue()

    async def write(self, message: pb.StreamingRecognizeManyRequest) -> None:
        await self.may_write.wait()
        self.sent.append(message)

    async def read(self) -> Any:
        return await self.answers.get()

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    async def details(self) -> str:
        return ""

    async def trailing_metadata(self) -> tuple[()]:
        return ()

    def cancel(self) -> bool:
        return True

    def credit(self, name: str, count: int) -> None:
        self.answers.put_nowait(
            pb.StreamingRecognizeManyResponse(credit_stream_ids=[name], credit_bytes=[count])
        )

    def say(self, name: str, **message: Any) -> None:
        response = pb.StreamingRecognizeResponse(**message)
        event = pb.StreamEvent(stream_id=name, message=response)
        self.answers.put_nowait(pb.StreamingRecognizeManyResponse(events=[event]))

    def told(self) -> dict[str, list[bytes | str]]:
        """What each stream was told, as the service reads it: audio joined, actions by name."""
        told: dict[str, list[bytes | str]] = defaultdict(list)

        def hear(name: str, data: bytes) -> None:
            if told[name] and isinstance(last := told[name][-1], bytes):
                told[name][-1] = last + data
            else:
                told[name].append(data)

        for message in self.sent:
            for name, data in zip(message.stream_ids, message.audio, strict=True):
                hear(name, data)
            for action in message.actions:
                kind = action.WhichOneof("action") or ""
                if kind == "message" and action.message.HasField("audio"):
                    hear(action.stream_id, action.message.audio)
                else:
                    tag = action.message.flush.tag
                    told[action.stream_id].append(f"{kind} {tag}".strip())
        return told


@pytest.fixture
async def call() -> AsyncIterator[Call]:
    yield Call()


@pytest.mark.parametrize("seed", range(20))
async def test_each_stream_is_told_in_order_and_within_its_credit(call: Call, seed: int) -> None:
    draw = random.Random(seed)
    many = RecognitionMultiplexer(lambda: call)
    streams = [many.start(RecognitionConfig()) for _ in range(3)]
    meant: dict[str, list[bytes | str]] = {stream.id: ["start"] for stream in streams}
    left = dict.fromkeys(meant, CREDIT_BYTES)
    heard = dict.fromkeys(meant, 0)

    def check() -> None:
        for name, items in call.told().items():
            total = sum(len(item) for item in items if isinstance(item, bytes))
            assert total <= left[name], "more than the service has room for"
            heard[name] = total

    for step in range(60):
        stream = draw.choice(streams)
        said = meant[stream.id]
        match draw.randrange(8):
            case 0:
                stream.flush(str(step))
                said.append(f"message {step}")
            case 1:
                # Never beyond what was sent, as the service counts.
                check()
                owed = heard[stream.id] + CREDIT_BYTES - left[stream.id]
                count = draw.randrange(owed + 1)
                left[stream.id] += count
                call.credit(stream.id, count)
            case 2:
                await asyncio.sleep(0)
            case 3:
                (call.may_write.clear if call.may_write.is_set() else call.may_write.set)()
            case _:
                data = PATTERN[: draw.choice((1, 3, 960, 960, 50_000))] * draw.choice((1, 1, 9))
                stream.send_audio(data)
                if isinstance(last := said[-1], bytes):
                    said[-1] = last + data
                else:
                    said.append(data)
    call.may_write.set()
    for stream in streams:
        stream.end_input()
        meant[stream.id].append("end_input")
        left[stream.id] += 1 << 30
        call.credit(stream.id, 1 << 30)
    await until(lambda: call.told() == meant)
    check()
    assert all(stream.queued_bytes == 0 for stream in streams)
    assert all(len(message.SerializeToString()) < 2 * MESSAGE_BYTES for message in call.sent)
    many.close()


async def test_appends_of_one_turn_of_the_loop_are_one_message(call: Call) -> None:
    many = RecognitionMultiplexer(lambda: call)
    streams = [many.start(RecognitionConfig()) for _ in range(50)]
    await until(lambda: len(call.sent) == 1)
    for stream in streams * 2:
        stream.send_audio(b"ab")
    await until(lambda: len(call.sent) == 2)
    assert list(call.sent[1].audio) == [b"abab"] * 50
    assert not call.sent[1].actions


async def test_room_comes_with_credit_or_with_the_end(call: Call) -> None:
    stream = RecognitionMultiplexer(lambda: call).start(RecognitionConfig())
    stream.send_audio(bytes(3 * CREDIT_BYTES))
    assert stream.queued_bytes == 2 * CREDIT_BYTES
    waiting = asyncio.create_task(stream.room(CREDIT_BYTES))
    await asyncio.sleep(0)
    assert not waiting.done()
    call.credit(stream.id, CREDIT_BYTES)
    await asyncio.wait_for(waiting, 5)
    waiting = asyncio.create_task(stream.room(0))
    await asyncio.sleep(0)
    stream.cancel()
    await asyncio.wait_for(waiting, 5)


async def test_a_reader_that_is_far_behind_ends_alone(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recognition_multiplex, "INBOX_EVENTS", 3)
    many = RecognitionMultiplexer(lambda: call)
    slow, other = many.start(RecognitionConfig()), many.start(RecognitionConfig())
    for number in range(4):
        call.say(slow.id, speech_started=pb.SpeechStarted(utterance=number))
    call.say(other.id, finished=pb.RecognitionFinished())
    assert [type(event).__name__ async for event in other] == ["RecognitionFinished"]
    assert slow.is_over and call.told()[slow.id][-1] == "cancel"


@pytest.mark.parametrize("has_answered", [False, True])
async def test_a_call_that_ends_in_order_ends_what_it_did_not_take_as_draining(
    call: Call, has_answered: bool
) -> None:
    stream: MultiplexedRecognition = RecognitionMultiplexer(lambda: call).start(RecognitionConfig())
    if has_answered:
        call.say(stream.id, ready=pb.RecognitionReady(model="m"))
        await anext(stream)
    call.answers.put_nowait(grpc.aio.EOF)
    with pytest.raises(Internal if has_answered else Unavailable):
        await anext(stream)
