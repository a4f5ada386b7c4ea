"""Streams of codes from their first hop to their end: flush, clear, silence and limits."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from antiphon.vocoder.v1 import vocoder_service_pb2 as pb
from antiphon_core.errors import (
    AntiphonError,
    DeadlineExceeded,
    InvalidArgument,
)
from antiphon_core.rpc.streams import messages, open_stream
from antiphon_vocoder.formats.pcm import pcm16_from_float
from codes_bench import (
    CLEAR,
    FLUSH,
    CodecBench,
    Heard,
    codes_of,
    frames,
    serving,
    speech_codes,
    speech_config,
)
from support.fake_codec import FRAME, RATE, FakeCodec, whole

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_flush_and_clear(bench: CodecBench, codec: FakeCodec) -> None:
    codes = codes_of(7, 5)
    async with open_stream(bench.stub.StreamSpeech()) as call:
        await call.write(speech_config())
        await call.write(speech_codes(codes))
        await call.write(pb.StreamSpeechRequest(flush=FLUSH))
        heard = Heard()
        async for message in messages(call):
            heard.add(message)
            if message.HasField("mark") and message.mark.input_offset == 5:
                break
        await call.write(pb.StreamSpeechRequest(clear=CLEAR))
        await call.write(speech_codes(codes))
        await call.done_writing()
        async for message in messages(call):
            heard.add(message)
    # What was held back of the cleared part is gone with it.
    first, second = heard.samples[: 5 * FRAME - 8], heard.samples[5 * FRAME - 8 :]
    expected = pcm16_from_float(whole(codec, codes))
    np.testing.assert_array_equal(first, expected[: 5 * FRAME - 8])
    np.testing.assert_array_equal(second, expected)
    assert heard.finished.input_units == 10
    assert heard.marks[-1] == (10, len(heard.samples))


async def test_cleared_frames_are_never_heard(bench: CodecBench, codec: FakeCodec) -> None:
    codec.step_seconds = 0.05
    kept = codes_of(8, 4)
    requests = [
        pb.DecodeCodesRequest(config=pb.DecodeConfig()),
        pb.DecodeCodesRequest(codes=frames(codes_of(9, 400))),
        pb.DecodeCodesRequest(clear=CLEAR),
        pb.DecodeCodesRequest(codes=frames(kept)),
    ]
    heard = await bench.hear(bench.stub.DecodeCodes(iter(requests)))
    expected = pcm16_from_float(whole(codec, kept))
    assert len(heard.samples) < 100 * FRAME
    np.testing.assert_array_equal(heard.samples[-len(expected) :], expected)
    assert heard.marks[-1][0] == 404


async def test_idle_streams_end_typed_after_progress(bench: CodecBench) -> None:
    starts: list[tuple[Any, Any]] = [
        (bench.stub.StreamSpeech, [speech_config(), speech_codes(codes_of(1, 2))]),
        (bench.stub.DecodeCodes, [pb.DecodeCodesRequest(config=pb.DecodeConfig())]),
        (bench.stub.EncodeAudio, [pb.EncodeAudioRequest(config=pb.EncodeConfig())]),
    ]
    for method, requests in starts:
        heard = Heard()
        with pytest.raises(DeadlineExceeded) as error:
            async with open_stream(method()) as call:
                for request in requests:
                    await call.write(request)
                async for message in messages(call):
                    heard.add(message)
        assert error.value.reason == "INPUT_IDLE"
        assert heard.kinds[0] == "ready"
        assert heard.kinds[-1] == "progress"
    await bench.until_idle()


async def test_nothing_of_an_expired_stream_is_in_the_next_one(
    bench: CodecBench, codec: FakeCodec
) -> None:
    """It stopped mid-way, with samples held back; then every slot speaks."""
    with pytest.raises(DeadlineExceeded):
        async with open_stream(bench.stub.StreamSpeech()) as call:
            await call.write(speech_config())
            await call.write(speech_codes(codes_of(1, 4)))
            async for _ in messages(call):
                pass
    codes = codes_of(2, 9)
    expected = pcm16_from_float(whole(codec, codes)).tobytes()
    heard = await asyncio.gather(*(bench.speak(codes) for _ in range(4)))
    assert {one.data for one in heard} == {expected}


async def test_the_longest_stream_ends_by_length() -> None:
    async with serving(FakeCodec(delay=8), max_stream_s=1.0, codec_slots=1) as bench:
        heard = await bench.speak(codes_of(1, 50))
        assert heard.finished.reason == pb.SPEECH_FINISH_REASON_LENGTH
        assert heard.finished.sample_count == RATE == len(heard.samples)
        with pytest.raises(InvalidArgument) as error:
            await bench.encode([bytes(2 * 25_000)])
        assert error.value.reason == "TOO_LARGE"
        await bench.until_idle()


async def test_half_close_races_with_the_first_hop(bench: CodecBench) -> None:
    codes = codes_of(1, 1)
    for pause in (0.0, 0.001, 0.005, 0.02):
        async with open_stream(bench.stub.StreamSpeech()) as call:
            await call.write(speech_config())
            await call.write(speech_codes(codes))
            await asyncio.sleep(pause)
            await call.done_writing()
            heard = Heard()
            async for message in messages(call):
                heard.add(message)
        assert heard.finished.sample_count == FRAME


async def test_no_configuration_at_all_ends_typed(bench: CodecBench) -> None:
    for method in (bench.stub.DecodeCodes, bench.stub.EncodeAudio):
        with pytest.raises(AntiphonError) as error:
            async with open_stream(method()) as call:
                async for _ in messages(call):
                    pass
        assert error.value.reason == "INPUT_IDLE"
