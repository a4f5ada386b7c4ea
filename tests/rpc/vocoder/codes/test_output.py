"""What streams of codes give: rates, containers, codes of audio, and what is measured of them."""

from __future__ import annotations

import io
import itertools
import random
import wave

import numpy as np
import pytest
import torch
from antiphon.vocoder.v1 import vocoder_service_pb2 as pb
from antiphon_core import metrics
from antiphon_vocoder.formats.pcm import float_from_pcm16, pcm16_from_float
from antiphon_vocoder.formats.resample import resample
from codes_bench import (
    CodecBench,
    codes_of,
)
from support.fake_codec import FRAME, RATE, SIZE, FakeCodec, whole

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
    samples = float_from_pcm16(np.frombuffer(audio, "<i2"))
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
