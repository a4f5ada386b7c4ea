"""What a stream delivers: formats, sample counts, limits, metrics, voices."""

from __future__ import annotations

import io
import wave
from typing import Any

import pytest
from antiphon.common.v1 import audio_pb2
from antiphon.vocoder.v1 import vocoder_service_pb2 as pb
from antiphon_core import metrics
from antiphon_core.errors import AntiphonError, InvalidArgument, NotFound
from antiphon_core.rpc.streams import messages, open_stream, result
from antiphon_vocoder.formats.decode import decode_audio
from speech_bench import SpeechBench, ToneVoice, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "Hello there, my old friend, how are you today? It costs 4,000.50 dollars. "


async def test_longest_stream(voice: ToneVoice) -> None:
    async with running(voice, max_stream_s=1.5) as bench:
        spoken = await bench.say("This is a sentence of some length. " * 10)
        assert spoken.finished.reason == pb.SPEECH_FINISH_REASON_LENGTH
        assert spoken.finished.sample_count == len(spoken.samples) == int(1.5 * 22050)
        await bench.until_idle()


@pytest.mark.parametrize(
    ("encoding", "rate"),
    [
        (audio_pb2.AUDIO_ENCODING_PCM16, 8000),
        (audio_pb2.AUDIO_ENCODING_PCM16, 24000),
        (audio_pb2.AUDIO_ENCODING_WAV, 16000),
        (audio_pb2.AUDIO_ENCODING_FLAC, 0),
        (audio_pb2.AUDIO_ENCODING_OPUS, 0),
    ],
)
async def test_formats_hold_the_announced_samples(
    bench: SpeechBench, encoding: audio_pb2.AudioEncoding, rate: int
) -> None:
    native = await bench.say("Hello there, this is one, and this is two.")
    spoken = await bench.say(
        "Hello there, this is one, and this is two.",
        output_format={"encoding": encoding, "sample_rate_hz": rate},
    )
    actual = spoken.ready.output_format.sample_rate_hz
    count = spoken.finished.sample_count
    assert count == -(-native.finished.sample_count * actual // 22050)
    assert sum(m.audio.sample_count for m in spoken.messages if m.HasField("audio")) == count
    if encoding == audio_pb2.AUDIO_ENCODING_PCM16:
        assert len(spoken.data) == 2 * count
    else:
        assert len(decode_audio(spoken.data, actual)) == count
    assert spoken.data.count(b"RIFF") == (encoding == audio_pb2.AUDIO_ENCODING_WAV)


async def test_exact_wav_is_one_whole_file(bench: SpeechBench) -> None:
    fields: dict[str, Any] = {"output_format": {"encoding": audio_pb2.AUDIO_ENCODING_WAV}}
    exact = await bench.say(TEXT * 3, exact_container=True, **fields)
    with wave.open(io.BytesIO(exact.data)) as reader:
        assert reader.getnframes() == exact.finished.sample_count
    streamed = await bench.say(TEXT * 3, **fields)
    assert streamed.data[44:] == exact.data[44:]
    assert all(m.ByteSize() <= 64 * 1024 for m in exact.messages)


async def test_metrics_tell_of_the_stream(bench: SpeechBench) -> None:
    def value(name: str, **labels: str) -> float:
        return metrics.value(name, model="piper", **labels) or 0.0

    names = ("speech_real_time_factor_count", "speech_audio_seconds_total")
    before = [value(name) for name in names]
    first = value("speech_first_audio_seconds_count", since="text")
    spoken = await bench.say("Hello there.")
    assert value(names[0]) == before[0] + 1
    assert value(names[1]) == pytest.approx(before[1] + len(spoken.samples) / 22050)
    assert value("speech_first_audio_seconds_count", since="text") == first + 1
    assert value("speech_hop_seconds_count", stage="decode") > 0


async def test_voices_are_listed(bench: SpeechBench) -> None:
    listed = await result(bench.stub.ListVoices(pb.ListVoicesRequest()))
    assert listed.voices[0].id == "joe"
    assert listed.voices[0].is_default
    assert listed.voices[0].kind == pb.VOICE_KIND_PRESET
    one = await result(bench.stub.GetVoice(pb.GetVoiceRequest(id="alloy")))
    assert one.voice == listed.voices[0]
    with pytest.raises(NotFound):
        await result(bench.stub.GetVoice(pb.GetVoiceRequest(id="nobody")))
    with pytest.raises(InvalidArgument):
        await result(bench.stub.GetVoice(pb.GetVoiceRequest()))


async def test_what_this_build_does_not_serve(bench: SpeechBench) -> None:
    calls = [
        lambda: bench.stub.DecodeCodes(iter([pb.DecodeCodesRequest()])),
        lambda: bench.stub.EncodeAudio(iter([pb.EncodeAudioRequest()])),
    ]
    for call in calls:
        with pytest.raises(AntiphonError) as error:
            async with open_stream(call()) as stream:
                async for _ in messages(stream):
                    pass
        assert error.value.reason == "UNSUPPORTED"
