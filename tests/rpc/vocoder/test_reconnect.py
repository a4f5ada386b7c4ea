"""A client that comes back into its old slot hears nothing of the call that it broke."""

from __future__ import annotations

from typing import Any

from antiphon.vocoder.v1.vocoder_service_pb2_grpc import VocoderServiceStub
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.streams import open_stream
from antiphon_vocoder.formats.pcm import pcm16_from_float
from codes_bench import codes_of, serving, speech_codes, speech_config
from speech_bench import ToneVoice, config, running, text
from support.fake_codec import FakeCodec, whole
from support.wire import Wire

OLD = "An old story is told at length, and it goes on and on. " * 20
NEW = "Something else."


async def read_chunks(call: Any, count: int) -> None:
    """Reads ready and so many chunks of audio; more are on their way."""
    assert (await call.read()).HasField("ready")
    while count:
        count -= (await call.read()).HasField("audio")


async def test_no_sample_of_old_text_is_in_the_next_call(voice: ToneVoice) -> None:
    """Broken by a cancel at several places, each time with a hop under way, then by a reset."""
    async with running(voice, slots=1) as bench:
        fresh = (await bench.say(NEW)).data
        assert fresh
        voice.hop_seconds = 0.01
        for chunks in (0, 1, 3):
            async with open_stream(bench.stub.StreamSpeech(iter([config(), text(OLD)]))) as call:
                await read_chunks(call, chunks)
            # At once: the new stream waits for the slot while the old one is taken down.
            assert (await bench.say(NEW)).data == fresh
        wire = Wire(bench.port)
        async with open_channel(f"127.0.0.1:{await wire.start()}") as channel:
            call = VocoderServiceStub(channel).StreamSpeech(iter([config(), text(OLD)]))
            await read_chunks(call, 2)
            await wire.cut()
            assert (await bench.say(NEW)).data == fresh
        await bench.until_idle()


async def test_no_sample_of_old_codes_is_in_the_next_call() -> None:
    """The codec holds samples back, and keeps state, in the slot that both use."""
    codec = FakeCodec(delay=8)
    new = codes_of(2, 7)
    fresh = pcm16_from_float(whole(codec, new)).tobytes()
    async with serving(codec, codec_slots=1, codec_rungs=(1,)) as bench:
        codec.step_seconds = 0.01
        for chunks in (0, 1, 3):
            old = iter([speech_config(), speech_codes(codes_of(1, 400))])
            async with open_stream(bench.stub.StreamSpeech(old)) as call:
                await read_chunks(call, chunks)
            heard = await bench.speak(new)
            assert heard.data == fresh
            assert heard.marks[-1] == (7, len(heard.samples))
        await bench.until_idle()
