"""The contract of streams of codes over a scripted codec: states, cuts, limits, cancels."""

from __future__ import annotations

import asyncio
import io
import itertools
import random
import time
import wave
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from antiphon.vocoder.v1 import vocoder_service_pb2 as pb
from antiphon_core import metrics
from antiphon_core.errors import (
    AntiphonError,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
)
from antiphon_core.rpc.streams import messages, open_stream, result
from antiphon_vocoder.formats.pcm import pcm16_from_float
from antiphon_vocoder.formats.resample import resample
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
from support.fake_codec import CODEBOOKS, FRAME, RATE, SIZE, FakeCodec, whole

pytestmark = pytest.mark.asyncio(loop_scope="module")


def cut(values: np.ndarray, generator: random.Random, count: int) -> list[np.ndarray]:
    places = sorted(generator.randint(0, len(values)) for _ in range(count))
    return np.split(values, places)


@pytest.fixture(scope="module")
def module_codec() -> FakeCodec:
    return FakeCodec(delay=8)


@pytest.fixture
def codec(module_codec: FakeCodec) -> Iterator[FakeCodec]:
    module_codec.step_seconds = 0.0
    yield module_codec


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_bench(module_codec: FakeCodec) -> AsyncIterator[CodecBench]:
    settings = {"codec_slots": 4, "queue_limit": 2, "stream_idle_s": 0.8, "progress_s": 0.3}
    async with serving(module_codec, **settings) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def bench(module_bench: CodecBench, codec: FakeCodec) -> AsyncIterator[CodecBench]:
    """One service a module; every test must leave it idle."""
    yield module_bench
    await module_bench.until_idle()


async def test_order_marks_and_exact_counts(bench: CodecBench, codec: FakeCodec) -> None:
    codes = codes_of(1, 23)
    heard = await bench.speak(codes)
    assert heard.kinds[0] == "ready"
    assert heard.kinds[-1] == "finished"
    assert heard.finished.sample_count == len(heard.samples) == 23 * FRAME
    assert heard.finished.input_units == 23
    assert heard.finished.reason == pb.SPEECH_FINISH_REASON_COMPLETE
    assert heard.ready.model == "fake"
    assert heard.ready.voice == ""
    assert heard.ready.output_format.sample_rate_hz == RATE
    assert heard.marks[-1] == (23, 23 * FRAME)
    assert [offset for offset, _ in heard.marks[:-1]] == [1, 3, 5, 9, 13, 17, 21, 23]
    assert heard.marks == sorted(heard.marks)
    np.testing.assert_array_equal(heard.samples, pcm16_from_float(whole(codec, codes)))
    decoded = await bench.decode(codes)
    assert decoded.data == heard.data
    assert decoded.marks == heard.marks


async def test_any_cut_gives_the_same_bytes(bench: CodecBench) -> None:
    codes = codes_of(2, 30)
    expected = await bench.speak(codes)
    generator = random.Random(4)
    for _ in range(5):
        again = await bench.speak(codes, pieces=cut(codes, generator, 6))
        assert (again.data, again.marks) == (expected.data, expected.marks)
    single = await bench.decode(codes, pieces=np.split(codes, 30))
    assert (single.data, single.marks) == (expected.data, expected.marks)


async def test_no_input_is_no_audio(bench: CodecBench) -> None:
    for heard in (await bench.speak(codes_of(1, 0)), await bench.decode(codes_of(1, 0))):
        assert heard.kinds == ["ready", "finished"]
        assert heard.finished.sample_count == 0
    encoded = await bench.encode([])
    assert encoded.kinds == ["ready", "finished"]
    assert (encoded.finished.sample_count, encoded.finished.frame_count) == (0, 0)


def one(*codes: int, count: int = CODEBOOKS, rate: float = 12.5) -> pb.StreamSpeechRequest:
    return pb.StreamSpeechRequest(
        codes={"codes": codes, "codebook_count": count, "frame_rate": rate}
    )


GOOD = speech_codes(codes_of(0, 1))


@pytest.mark.parametrize(
    ("requests", "field", "reason"),
    [
        ([], "config", "MISSING_FIELD"),
        ([GOOD], "codes", "STREAM_PROTOCOL"),
        ([pb.StreamSpeechRequest()], "message", "STREAM_PROTOCOL"),
        ([speech_config(), speech_config()], "config", "STREAM_PROTOCOL"),
        ([speech_config(), GOOD, speech_config()], "config", "STREAM_PROTOCOL"),
        ([speech_config(), pb.StreamSpeechRequest(text="a")], "text", "STREAM_PROTOCOL"),
        ([speech_config(), pb.StreamSpeechRequest()], "message", "STREAM_PROTOCOL"),
        ([speech_config(), one(0, 1, 2, SIZE)], "codes.codes[3]", "INVALID_CODES"),
        ([speech_config(), GOOD, one(0, 1, 2, 3, -1, 0, 0, 0)], "codes.codes[4]", "INVALID_CODES"),
        ([speech_config(), one(0, 1, 2, 2**31 - 1)], "codes.codes[3]", "INVALID_CODES"),
        ([speech_config(), one(0, 1, 2)], "codes.codes", "INVALID_CODES"),
        ([speech_config(), one(0, 1, count=2)], "codes.codebook_count", "INVALID_CODES"),
        ([speech_config(), one(count=0)], "codes.codebook_count", "INVALID_CODES"),
        ([speech_config(), one(0, 1, 2, 3, rate=25)], "codes.frame_rate", "INVALID_CODES"),
        ([speech_config(), one(rate=float("nan"))], "codes.frame_rate", "INVALID_CODES"),
        ([speech_config(), one(*[0] * 65540)], "codes.codes", "TOO_LARGE"),
        ([speech_config(speed=2)], "config.speed", "UNSUPPORTED_OPTION"),
        ([speech_config(language="en")], "config.language", "UNSUPPORTED_OPTION"),
        ([speech_config(instructions="sing")], "config.instructions", "UNSUPPORTED_OPTION"),
        (
            [speech_config(chunking=pb.CHUNKING_SENTENCE)],
            "config.chunking",
            "UNSUPPORTED_OPTION",
        ),
        (
            [speech_config(output_format={"sample_rate_hz": 7})],
            "config.output_format.sample_rate_hz",
            "INVALID_VALUE",
        ),
        (
            [speech_config(code_format={"codebook_count": CODEBOOKS + 1})],
            "config.code_format.codebook_count",
            "INVALID_CODES",
        ),
        (
            [speech_config(code_format={"codebook_count": -1})],
            "config.code_format.codebook_count",
            "INVALID_CODES",
        ),
        (
            [speech_config(code_format={"frame_rate": 50})],
            "config.code_format.frame_rate",
            "INVALID_CODES",
        ),
    ],
)
async def test_messages_out_of_place_and_out_of_range(
    bench: CodecBench, requests: list[pb.StreamSpeechRequest], field: str, reason: str
) -> None:
    with pytest.raises(InvalidArgument) as error:
        await bench.hear(bench.stub.StreamSpeech(iter(requests)))
    assert (error.value.field, error.value.reason) == (field, reason)
    await bench.until_idle()


async def test_decode_and_encode_refuse_alike(bench: CodecBench) -> None:
    bad = pb.DecodeCodesRequest(
        codes={"codes": [SIZE] * 4, "codebook_count": 4, "frame_rate": 12.5}
    )
    config = pb.DecodeCodesRequest(config=pb.DecodeConfig())
    for requests, field in (
        ([bad], "codes"),
        ([config, bad], "codes.codes[0]"),
        ([config, config], "config"),
        ([config, pb.DecodeCodesRequest()], "message"),
    ):
        with pytest.raises(InvalidArgument) as error:
            await bench.hear(bench.stub.DecodeCodes(iter(requests)))
        assert error.value.field == field
    start = pb.EncodeAudioRequest(config=pb.EncodeConfig())
    for requests, field in (
        ([pb.EncodeAudioRequest(audio=b"ab")], "audio"),
        ([start, start], "config"),
        ([start, pb.EncodeAudioRequest()], "message"),
        (
            [
                pb.EncodeAudioRequest(
                    config=pb.EncodeConfig(input_format={"sample_rate_hz": 96_000})
                )
            ],
            "config.input_format.sample_rate_hz",
        ),
        (
            [pb.EncodeAudioRequest(config=pb.EncodeConfig(input_format={"encoding": 3}))],
            "config.input_format.encoding",
        ),
    ):
        with pytest.raises(InvalidArgument) as error:
            await bench.hear(bench.stub.EncodeAudio(iter(requests)))
        assert error.value.field == field
    await bench.until_idle()


async def test_unknown_codecs_voices_and_models_list_the_known(bench: CodecBench) -> None:
    calls: list[tuple[Any, str]] = [
        (lambda: bench.speak(codes_of(0, 1), code_format={"codec": "mimo"}), "code_format.codec"),
        (lambda: bench.decode(codes_of(0, 1), code_format={"codec": "x"}), "code_format.codec"),
        (lambda: bench.encode([], code_format={"codec": "x"}), "code_format.codec"),
        (lambda: bench.speak(codes_of(0, 1), model="piper"), "model"),
        (lambda: bench.speak(codes_of(0, 1), voice="joe"), "voice"),
    ]
    for call, field in calls:
        with pytest.raises(NotFound) as error:
            await call()
        assert error.value.field == f"config.{field}"
        if field != "voice":
            assert error.value.metadata["allowed"] == "fake"
    fallback = await bench.speak(
        codes_of(0, 2), voice="joe", unknown_voice=pb.UNKNOWN_VOICE_DEFAULT
    )
    assert fallback.ready.voice_fallback


async def test_a_voice_is_bound_to_its_codec() -> None:
    codec, few = FakeCodec(), {"codec_slots": 1, "codec_rungs": (1,)}
    async with serving(codec, codec_voices={"aria": "fake"}, **few) as bench:
        heard = await bench.speak(codes_of(0, 3), voice="aria", model="fake")
        assert (heard.ready.voice, heard.ready.model) == ("aria", "fake")
        listed = (await result(bench.stub.ListCodecs(pb.ListCodecsRequest()))).codecs
    assert listed == [
        pb.Codec(
            name="fake", codebook_count=CODEBOOKS, codebook_size=SIZE, control_codes=[SIZE + 7],
            frame_rate=RATE / FRAME, frame_samples=FRAME, sample_rate_hz=RATE,
            decodes=True, encodes=True, voices=["aria"],
        )
    ]  # fmt: skip
    with pytest.raises(FailedPrecondition, match="bound to 'mimi'"):
        async with serving(codec, codec_voices={"aria": "mimi"}, **few):
            pass


async def test_first_codebooks_and_control_codes(bench: CodecBench, codec: FakeCodec) -> None:
    codes = codes_of(3, 6, codebooks=2)
    heard = await bench.speak(codes, code_format={"codec": "fake", "codebook_count": 2})
    np.testing.assert_array_equal(heard.samples, pcm16_from_float(whole(codec, codes)))
    control = codes_of(3, 1)
    control[0, 2] = SIZE + 7
    assert (await bench.speak(control)).finished.input_units == 1


@pytest.mark.parametrize("rate", [8000, 16_000, 44_100, 48_000])
async def test_output_rates(bench: CodecBench, codec: FakeCodec, rate: int) -> None:
    codes = codes_of(5, 9)
    heard = await bench.speak(codes, output_format={"sample_rate_hz": rate})
    expected = pcm16_from_float(resample(whole(codec, codes), RATE, rate))
    assert heard.finished.sample_count == len(expected) == len(heard.samples)
    np.testing.assert_allclose(heard.samples, expected, atol=1)
    assert heard.marks[-1] == (9, len(expected))


async def test_wav_has_one_header_and_the_file_is_readable(bench: CodecBench) -> None:
    wav = pb.SpeechConfig(output_format={"encoding": 2}).output_format
    codes = codes_of(6, 25)
    streamed = await bench.speak(codes, output_format=wav)
    exact = await bench.speak(codes, output_format=wav, exact_container=True)
    plain = await bench.speak(codes)
    for heard in (streamed, exact):
        assert heard.data.startswith(b"RIFF")
        assert heard.data.find(b"RIFF", 1) == -1
        with wave.open(io.BytesIO(heard.data)) as file:
            assert file.getframerate() == RATE
            assert file.readframes(25 * FRAME) == plain.data


async def test_compressed_formats_tell_every_sample(bench: CodecBench) -> None:
    for encoding in (3, 4, 5):
        heard = await bench.speak(codes_of(6, 13), output_format={"encoding": encoding})
        audio = [m.audio for m in heard.messages if m.HasField("audio")]
        assert sum(a.sample_count for a in audio) == heard.finished.sample_count


async def test_encode_resamples_pads_and_tells_the_true_length(
    bench: CodecBench, codec: FakeCodec
) -> None:
    seconds = 0.9
    time_ = np.arange(int(16_000 * seconds)) / 16_000
    audio = (12_000 * np.sin(2 * np.pi * 300 * time_)).astype("<i2").tobytes()
    config = {
        "input_format": {"encoding": 1, "sample_rate_hz": 16_000},
        "code_format": {"codec": "fake", "codebook_count": 3},
    }
    expected = await bench.encode([audio], **config)
    assert expected.finished.sample_count == int(RATE * seconds)
    assert expected.finished.frame_count == 12
    assert len(expected.codes) == 12 * 3
    assert expected.ready.sample_rate_hz == RATE
    assert expected.ready.frame_samples == FRAME
    assert expected.ready.code_format.codebook_count == 3
    message = next(m.codes for m in expected.messages if m.HasField("codes"))
    assert (message.codebook_count, message.frame_rate) == (3, 12.5)
    import torch

    samples = np.frombuffer(audio, "<i2").astype(np.float32) / 32768
    at_rate = torch.from_numpy(resample(samples, 16_000, RATE))[None]
    oracle = codec.encode(at_rate)[0, :3].numpy().T
    assert expected.codes == oracle.reshape(-1).tolist()
    generator = random.Random(1)
    for _ in range(4):
        places = sorted(generator.randint(0, len(audio)) for _ in range(7))
        ends = [0, *places, len(audio)]
        parts = [audio[a:b] for a, b in itertools.pairwise(ends)]
        assert (await bench.encode(parts, **config)).codes == expected.codes
    law = await bench.encode([b"\xff" * 8000], input_format={"encoding": 7, "sample_rate_hz": 8000})
    assert law.finished.sample_count == RATE


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


async def test_metrics_of_a_stream(bench: CodecBench) -> None:
    def reading(name: str, **labels: str) -> float:
        return metrics.value(name, **labels) or 0.0

    model = {"model": "fake"}
    names = [
        ("speech_first_audio_seconds_count", {**model, "since": "codes"}),
        ("speech_first_audio_seconds_count", {**model, "since": "config"}),
        ("speech_real_time_factor_count", model),
        ("speech_least_slack_seconds_count", model),
        ("speech_streams_total", {**model, "continuous": "true"}),
        ("speech_hop_seconds_count", {**model, "stage": "decode"}),
        ("speech_step_rows_count", {**model, "stage": "decode"}),
    ]
    before = [reading(name, **labels) for name, labels in names]
    audio = reading("speech_audio_seconds_total", **model)
    await bench.speak(codes_of(1, 25))
    after = [reading(name, **labels) for name, labels in names]
    assert all(b > a for a, b in zip(before, after, strict=True))
    assert reading("speech_audio_seconds_total", **model) == pytest.approx(audio + 2.0)


async def test_no_configuration_at_all_ends_typed(bench: CodecBench) -> None:
    started = time.monotonic()
    for method in (bench.stub.DecodeCodes, bench.stub.EncodeAudio):
        with pytest.raises(AntiphonError) as error:
            async with open_stream(method()) as call:
                async for _ in messages(call):
                    pass
        assert error.value.reason == "INPUT_IDLE"
    assert time.monotonic() - started < 5.0
