"""StreamingRecognizeMany: streams of one call share messages, and only messages."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import grpc
import numpy as np
import pytest
from antiphon.vocoder.v1 import recognition_service_pb2 as pb
from antiphon_core.errors import InvalidArgument
from antiphon_core.rpc.streams import messages, open_stream
from antiphon_vocoder.recognition.session import CREDIT_BYTES
from support.waiting import until

from tests.rpc.recognition.conftest import RecognitionServer
from tests.rpc.recognition.live import Request, audio_requests, flush, manual, recognise
from tests.rpc.recognition.many import QUIET, Caller, Many, act, end, together
from tests.unit.recognition.piper_speech import SENTENCES, pcm16, silence, speak

TURNS = pb.RecognitionConfig(skip_transcription=True)


async def test_streams_of_one_call_hear_what_they_hear_alone(stub: Any) -> None:
    spoken = [
        pcm16(np.concatenate([silence(0.3), speak(text), silence(0.8)])) for text in SENTENCES[:2]
    ]
    alone = [await recognise(stub, audio_requests(data), TURNS) for data in spoken]
    caller = Caller(stub)
    start = pb.StartRecognition(config=TURNS)
    await caller.send(act("0", start=start), act("1", start=start))
    cuts = (audio_requests(spoken[0], 4001), audio_requests(spoken[1], 6007))
    for pieces in itertools.zip_longest(*cuts):
        told = {str(number): piece.audio for number, piece in enumerate(pieces) if piece}
        await caller.send(Many(stream_ids=told.keys(), audio=told.values()))
    await caller.send(end("0"), end("1"))
    await caller.read_until_ended("0", "1")
    caller.call.cancel()
    assert [caller.heard[name] for name in "01"] == alone
    assert all("speech_stopped" in [kind for kind, _ in events] for events in alone)


async def test_what_follows_an_action_stays_behind_it(stub: Any) -> None:
    """Audio of a message comes before its actions; what must not is an action itself."""
    config = pb.RecognitionConfig(turn_detection=manual())
    start = pb.StreamAction(stream_id="a", start=pb.StartRecognition(config=config))
    told = [flush("first"), Request(audio=bytes(32_000)), flush("second"), Request(audio=b"\0" * 6)]
    actions = [pb.StreamAction(stream_id="a", message=message) for message in told]
    caller = Caller(stub)
    await caller.send(Many(actions=[start, *actions]), end("a"))
    await caller.read_until_ended("a")
    caller.call.cancel()
    finals = [item for kind, item in caller.heard["a"] if kind == "final"]
    assert [(item.tag, item.end_ms) for item in finals][:2] == [("first", 0), ("second", 1000)]
    assert caller.heard["a"][-1][1].audio_duration.ToMilliseconds() == 1000


@pytest.mark.parametrize(
    ("told", "reason", "field"),
    [
        ([act("bad", start=pb.StartRecognition(config={"model": "x"}))],
         "MODEL_NOT_FOUND", "config.model"),
        ([act("bad", start=QUIET), act("bad", message=Request())], "STREAM_PROTOCOL", "message"),
        # In one message: alone, the end would let the stream finish before the audio comes.
        ([together(act("bad", start=QUIET), end("bad"), act("bad", message=Request(audio=b"xx")))],
         "STREAM_PROTOCOL", "message"),
        ([act("bad", start=QUIET), Many(stream_ids=["bad"], audio=[bytes(CREDIT_BYTES + 1)])],
         "TOO_LARGE", "audio"),
        ([act("bad", start=QUIET),
          Many(stream_ids=["bad"] * 3, audio=[bytes(CREDIT_BYTES // 2)] * 3)],
         "STREAM_PROTOCOL", "audio"),
    ],
)  # fmt: skip
async def test_a_failed_stream_ends_alone(
    stub: Any, told: list[Many], reason: str, field: str
) -> None:
    caller = Caller(stub)
    await caller.send(act("good", start=QUIET), *told, Many(stream_ids=["bad"], audio=[b"late"]))
    await caller.read_until_ended("bad")
    error = caller.heard["bad"][-1][1]
    assert (error.reason, error.field) == (reason, field)
    await caller.send(act("bad", start=QUIET), end("bad"), end("good"))
    caller.heard.pop("bad")
    await caller.read_until_ended("good", "bad")
    assert caller.last("good") == caller.last("bad") == "finished"
    caller.call.cancel()


async def test_credit_comes_back_for_what_was_heard(stub: Any) -> None:
    caller = Caller(stub)
    piece = bytes(CREDIT_BYTES // 4)
    await caller.send(act("a", start=QUIET), *[Many(stream_ids=["a"], audio=[piece])] * 4)
    sent = CREDIT_BYTES
    async with asyncio.timeout(30):
        for _ in range(4):
            while sent - caller.credit["a"] > CREDIT_BYTES - len(piece):
                caller.take(await caller.call.read())
            await caller.send(Many(stream_ids=["a"], audio=[piece]))
            sent += len(piece)
    await caller.send(end("a"))
    await caller.read_until_ended("a")
    caller.call.cancel()
    assert caller.last("a") == "finished"
    assert caller.credit["a"] <= sent


@pytest.mark.parametrize(
    ("told", "field"),
    [
        (act("", start=QUIET), "start.stream_id"),
        (Many(actions=[pb.StreamAction(stream_id="a")]), "actions.action"),
        (Many(stream_ids=["a"]), "audio"),
    ],
)
async def test_what_is_no_message_ends_the_call(stub: Any, told: Many, field: str) -> None:
    call = stub.StreamingRecognizeMany()
    with pytest.raises(InvalidArgument) as caught:
        async with open_stream(call):
            await call.write(told)
            async for _ in messages(call):
                pass
    assert (caught.value.reason, caught.value.field) == ("STREAM_PROTOCOL", field)


async def test_a_cancelled_stream_and_a_cancelled_call_free_their_streams(
    stub: Any, recognition_server: RecognitionServer
) -> None:
    def live() -> float:
        return recognition_server.runtime.gauges()["recognition_streams"]

    caller = Caller(stub)
    await caller.send(*(act(name, start=QUIET) for name in "abc"))
    await until(lambda: live() == 3)
    await caller.send(act("a", cancel=pb.CancelRecognition()))
    await until(lambda: live() == 2)
    caller.call.cancel()
    await until(lambda: live() == 0)


async def test_half_closing_ends_the_input_of_every_stream(stub: Any) -> None:
    caller = Caller(stub)
    await caller.send(act("a", start=QUIET), act("b", start=QUIET))
    await caller.call.done_writing()
    while (message := await caller.call.read()) is not grpc.aio.EOF:
        caller.take(message)
    assert caller.last("a") == caller.last("b") == "finished"
