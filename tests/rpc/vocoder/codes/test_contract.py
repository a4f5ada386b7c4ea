"""Streams of codes over a scripted codec: order, cuts, and what is refused by its field."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from antiphon.vocoder.v1 import vocoder_service_pb2 as pb
from antiphon_core.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
)
from antiphon_core.rpc.streams import result
from antiphon_vocoder.formats.pcm import pcm16_from_float
from codes_bench import (
    CodecBench,
    codes_of,
    serving,
    speech_codes,
    speech_config,
)
from support.fake_codec import CODEBOOKS, FRAME, RATE, SIZE, FakeCodec, whole

pytestmark = pytest.mark.asyncio(loop_scope="module")


def cut(values: np.ndarray, generator: random.Random, count: int) -> list[np.ndarray]:
    places = sorted(generator.randint(0, len(values)) for _ in range(count))
    return np.split(values, places)


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
