"""Streams of codes in company: slots, queue, cancels, back-pressure, parallel calls, faults."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import grpc
import numpy as np
import pytest
from antiphon.vocoder.v1 import vocoder_service_pb2 as pb
from antiphon_core import metrics
from antiphon_core.errors import DeadlineExceeded, Internal, ResourceExhausted
from antiphon_core.rpc.streams import messages, open_stream, result
from antiphon_vocoder.formats.pcm import pcm16_from_float
from codes_bench import (
    CodecBench,
    Heard,
    codes_of,
    frames,
    serving,
    speech_codes,
    speech_config,
)
from support.fake_codec import BAD_CODE, CODEBOOKS, FRAME, NAN_CODE, FakeCodec, whole

RATE = 24_000


@pytest.fixture
def codec() -> FakeCodec:
    return FakeCodec(delay=8)


@pytest.fixture
async def bench(codec: FakeCodec) -> AsyncIterator[CodecBench]:
    async with serving(codec, codec_slots=4, queue_limit=2) as made:
        yield made


async def test_slots_queue_refusal_and_expiry(codec: FakeCodec) -> None:
    async with serving(codec, codec_slots=2, queue_limit=1) as bench:
        refused = metrics.value("speech_refused_total", model="codec") or 0.0
        held = [bench.stub.StreamSpeech() for _ in range(2)]
        for call in held:
            await call.write(speech_config())
            await call.read()
        with pytest.raises(DeadlineExceeded):
            requests = iter([pb.DecodeCodesRequest(config=pb.DecodeConfig())])
            await bench.hear(bench.stub.DecodeCodes(requests, timeout=0.2))
        while bench.runtime.codec.slots.queued:
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(bench.decode(codes_of(1, 3)))
        while not bench.runtime.codec.slots.queued:
            await asyncio.sleep(0.005)
        slots = await result(bench.stub.GetSlots(pb.GetSlotsRequest()))
        group = next(group for group in slots.groups if group.name == "codec")
        assert (group.total, group.busy, group.queued, list(group.models)) == (2, 2, 1, ["fake"])
        assert slots.busy == 2
        assert slots.total == 2 + bench.runtime.slots.total
        assert slots.cost["fake"] > 0
        assert bench.runtime.utilizations() == {"slot_utilization": 1.0}
        with pytest.raises(ResourceExhausted) as full:
            await bench.encode([b""])
        assert (full.value.reason, full.value.retry_after is not None) == ("QUEUE_FULL", True)
        assert metrics.value("speech_refused_total", model="codec") == refused + 1
        held[0].cancel()
        assert (await waiting).ready.queue_wait.ToMicroseconds() > 0
        held[1].cancel()
        await bench.until_idle()
        assert bench.runtime.utilizations() == {"slot_utilization": 0.0}


async def test_a_stream_that_waits_for_a_slot_is_told_so(codec: FakeCodec) -> None:
    async with serving(codec, codec_slots=1, progress_s=0.1) as bench:
        held = bench.stub.StreamSpeech()
        await held.write(speech_config())
        await held.read()
        config = pb.DecodeCodesRequest(config=pb.DecodeConfig())
        requests = [config, pb.DecodeCodesRequest(codes=frames(codes_of(1, 3)))]
        async with open_stream(bench.stub.DecodeCodes(iter(requests))) as waiting:
            heard = messages(waiting)
            for _ in range(2):
                assert (await anext(heard)).HasField("progress")
            held.cancel()
            kinds = [message.WhichOneof("message") async for message in heard]
        assert "ready" in kinds and kinds[-1] == "finished"
        assert set(kinds[: kinds.index("ready")]) <= {"progress"}
        await bench.until_idle()


@pytest.mark.parametrize("rounds", [3, pytest.param(10, marks=pytest.mark.slow)])
async def test_hundreds_of_random_cancels_change_nobody(codec: FakeCodec, rounds: int) -> None:
    """The thousand of the engine alone are in test_scheduling."""
    generator = random.Random(7)
    codes = codes_of(1, 20)
    async with serving(codec, codec_slots=8, queue_limit=2000, codec_rungs=(8,)) as bench:
        expected = (await bench.speak(codes)).data

        async def cancelled() -> None:
            requests = [speech_config(), speech_codes(codes)]
            async with open_stream(bench.stub.StreamSpeech(iter(requests))) as call:
                for _ in range(generator.randint(0, 3)):
                    await call.read()

        async def kept() -> None:
            assert (await bench.speak(codes)).data == expected

        for _ in range(rounds):
            jobs = [cancelled] * 100 + [kept] * 2
            generator.shuffle(jobs)
            await asyncio.gather(*(job() for job in jobs))
        await bench.until_idle()
        assert bench.runtime.codec.slots.queued == 0
        assert (await bench.speak(codes)).data == expected


async def test_cancel_reaches_the_codec_within_a_hop(codec: FakeCodec) -> None:
    async with serving(codec, codec_slots=1) as bench:
        codec.step_seconds = 0.02
        requests = [speech_config(), speech_codes(codes_of(1, 600))]
        async with open_stream(bench.stub.StreamSpeech(iter(requests))) as call:
            while not (await call.read()).HasField("audio"):
                pass
        await bench.until_idle()
        steps = len(codec.shapes)
        # The one that ran, and one whose message crossed the cancel's.
        assert await still_steps(codec) <= steps + 2


async def still_steps(codec: FakeCodec) -> int:
    """Steps so far, once no further one was run for 0.3 s."""
    while True:
        steps = len(codec.shapes)
        await asyncio.sleep(0.3)
        if len(codec.shapes) == steps:
            return steps


async def test_slow_reader_and_burst_lose_nothing(codec: FakeCodec) -> None:
    count = 900
    codes = codes_of(2, count)
    async with serving(codec, codec_slots=2, lead_s=2.0) as bench:
        requests = [speech_config(), *(speech_codes(part) for part in np.split(codes, 18))]
        async with open_stream(bench.stub.StreamSpeech(iter(requests))) as slow:
            await slow.read()
            stalled = await still_steps(codec)
            assert (await bench.speak(codes_of(3, 9))).finished.input_units == 9
            heard = Heard()
            while (message := await slow.read()) is not grpc.aio.EOF:
                heard.kinds.append(message.WhichOneof("message"))
                heard.data += message.audio.data if message.HasField("audio") else b""
                heard.messages = [message]
        # It stood still long before its end, and nothing was dropped meanwhile.
        assert len(codec.shapes) > 2 * stalled
        assert heard.finished.input_units == count
        assert len(heard.samples) == count * FRAME


async def test_one_tone_each_of_64_parallel_calls(codec: FakeCodec) -> None:
    async with serving(codec, codec_slots=64, codec_rungs=(64,)) as bench:

        async def tone(place: int) -> None:
            codes = np.zeros((13, CODEBOOKS), np.int32)
            codes[:, 0] = 7 * place
            heard = await bench.speak(codes, pieces=np.split(codes, 13))
            pitch = np.abs(np.fft.rfft(heard.samples)).argmax() * RATE / len(heard.samples)
            assert abs(pitch - (100 + 4 * 7 * place)) < 2.0

        await asyncio.gather(*(tone(place) for place in range(64)))


async def test_equal_requests_give_equal_bytes_in_company(codec: FakeCodec) -> None:
    async with serving(codec, codec_slots=32, codec_rungs=(32,)) as bench:
        codes = codes_of(1, 12)
        alone = (await bench.speak(codes)).data
        company = await asyncio.gather(*(bench.speak(codes) for _ in range(32)))
        assert {heard.data for heard in company} == {alone}


@pytest.mark.parametrize("code", [BAD_CODE, NAN_CODE])
async def test_a_failed_hop_ends_its_stream_alone(
    bench: CodecBench, codec: FakeCodec, code: int
) -> None:
    codec.raise_on_bad = True
    broken = codes_of(1, 9)
    broken[4, 0] = code
    good = codes_of(2, 9)
    outcomes = await asyncio.gather(
        bench.speak(broken), bench.speak(good), bench.speak(good), return_exceptions=True
    )
    assert isinstance(outcomes[0], Internal)
    expected = pcm16_from_float(whole(codec, good)).tobytes()
    for heard in outcomes[1:]:
        assert isinstance(heard, Heard)
        assert heard.data == expected
    await bench.until_idle()
