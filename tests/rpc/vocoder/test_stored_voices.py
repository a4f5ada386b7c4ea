"""Voices that tenants make: judged, kept, spoken with, deleted, seen by every process."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from antiphon.common.v1 import audio_pb2
from antiphon.vocoder.v1 import vocoder_service_pb2 as pb
from antiphon_core.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from antiphon_core.rpc.context import ALL_TENANTS, RequestContext, use_context
from antiphon_core.rpc.streams import messages, open_stream, result
from antiphon_vocoder import stored_voices
from antiphon_vocoder.formats.decode import decode_audio
from antiphon_vocoder.formats.wav import wav_header
from antiphon_vocoder.voice_store.store import CONDITIONING, MANIFEST, SAMPLE
from codes_bench import CodecBench, codes_of, serving, speech_codes, speech_config
from safetensors.numpy import load
from support.fake_codec import CODEBOOKS, FRAME, FakeCodec
from support.fake_codec import RATE as CODEC_RATE

from tests.unit.recognition.piper_speech import SENTENCES, pcm16, speak

pytestmark = pytest.mark.asyncio(loop_scope="module")

RATE = 16_000
LONG = 200
"""Frames that the codec does not finish before a test has acted."""


@cache
def recording() -> bytes:
    """Speech of more than 3 s, 16-bit at 16 kHz."""
    spoken = np.concatenate([speak(sentence) for sentence in SENTENCES[:3]])
    return pcm16(spoken)[: 12 * RATE * 2]


def consent(**fields: Any) -> pb.VoiceConsent:
    made = pb.VoiceConsent(statement="I agree.", speaker="Joe", **fields)
    made.granted_at.FromSeconds(1_700_000_000)
    return made


def raw_config(**fields: Any) -> pb.CreateVoiceConfig:
    fields.setdefault("display_name", "Joe's twin")
    fields.setdefault("consent", consent())
    encoding = audio_pb2.AudioFormat(encoding=audio_pb2.AUDIO_ENCODING_PCM16, sample_rate_hz=RATE)
    return pb.CreateVoiceConfig(**{"format": encoding, **fields})


async def create(
    bench: CodecBench, config: pb.CreateVoiceConfig | None = None, data: bytes | None = None
) -> pb.Voice:
    sample = recording() if data is None else data
    requests = [pb.CreateVoiceRequest(config=config or raw_config())]
    requests += [
        pb.CreateVoiceRequest(audio=sample[start : start + 50_001])
        for start in range(0, len(sample), 50_001)
    ]
    return (await result(bench.stub.CreateVoice(iter(requests)))).voice


async def delete(bench: CodecBench, voice_id: str, **fields: Any) -> None:
    await result(bench.stub.DeleteVoice(pb.DeleteVoiceRequest(id=voice_id, **fields)))


async def listed(bench: CodecBench) -> list[str]:
    answer = await result(bench.stub.ListVoices(pb.ListVoicesRequest()))
    return [voice.id for voice in answer.voices if voice.kind != pb.VOICE_KIND_PRESET]


def tenant(name: str) -> Any:
    return use_context(RequestContext(tenant=name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("voices")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_bench(folder: Path) -> AsyncIterator[CodecBench]:
    async with serving(
        FakeCodec(), voice_store_dir=folder, codec_slots=1, stream_idle_s=0.5, lead_s=2.0
    ) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def bench(module_bench: CodecBench) -> AsyncIterator[CodecBench]:
    yield module_bench
    voices = module_bench.runtime.voices
    for voice in voices.visible(None):
        await voices.delete(voice.id, voice.owner, drain=True)


async def test_a_sample_becomes_a_voice(bench: CodecBench, folder: Path) -> None:
    evidence = hashlib.sha256(b"evidence").digest()
    before = time.time()
    config = raw_config(consent=consent(evidence_sha256=evidence), transcript="A", language="en-GB")
    with tenant("red"):
        voice = await create(bench, config)
        got = (await result(bench.stub.GetVoice(pb.GetVoiceRequest(id=voice.id)))).voice
    assert got == voice
    assert (voice.display_name, voice.kind) == ("Joe's twin", pb.VOICE_KIND_CLONED)
    assert (list(voice.models), voice.tenant, voice.language) == (["fake"], "red", "en-GB")
    assert voice.sample_rate_hz == CODEC_RATE
    assert before - 1 < voice.created_at.seconds <= time.time()
    codes = load((folder / voice.id / CONDITIONING).read_bytes())["fake"]
    assert codes.dtype == np.int32 and codes.shape[1] == CODEBOOKS
    seconds = min(len(recording()) / 2 / RATE, 10.0)
    assert 3 < len(codes) * FRAME / 24_000 <= seconds + 0.1
    kept = decode_audio((folder / voice.id / SAMPLE).read_bytes(), RATE)
    given = np.frombuffer(recording(), "<i2").astype(np.float32) / 32768
    assert abs(len(kept) - len(given)) <= 1
    near = min(len(kept), len(given))
    assert np.sqrt(np.mean((kept[:near] - given[:near]) ** 2)) < 0.003
    manifest = (folder / voice.id / MANIFEST).read_text()
    assert evidence.hex() in manifest and '"I agree."' in manifest


async def test_a_container_is_told_by_its_bytes(bench: CodecBench) -> None:
    file = wav_header(RATE, None) + recording()
    config = pb.CreateVoiceConfig(display_name="x", consent=consent())
    assert (await create(bench, config, file)).id in await listed(bench)


@pytest.mark.parametrize(
    ("config", "data", "field"),
    [
        (raw_config(), b"\0\0" * RATE * 4, "audio"),
        (raw_config(), lambda: recording()[: RATE * 4], "audio"),
        (raw_config(), lambda: recording() * 6, "audio"),
        (raw_config(format=audio_pb2.AudioFormat()), b"nothing", "audio"),
        (raw_config(), b"", "audio"),
        (raw_config(display_name=" "), b"", "config.display_name"),
        (raw_config(display_name="x" * 129), b"", "config.display_name"),
        (raw_config(consent=pb.VoiceConsent(speaker="x")), b"", "config.consent.statement"),
        (
            raw_config(consent=pb.VoiceConsent(speaker="x", statement="y")),
            b"",
            "config.consent.granted_at",
        ),
        (raw_config(consent=consent(evidence_sha256=b"1")), b"", "config.consent.evidence_sha256"),
        (
            raw_config(format=audio_pb2.AudioFormat(encoding=audio_pb2.AUDIO_ENCODING_PCM16)),
            b"",
            "config.format.sample_rate_hz",
        ),
    ],
)
async def test_what_makes_no_voice_is_named(
    bench: CodecBench, config: pb.CreateVoiceConfig, data: Any, field: str
) -> None:
    sample: Any = data() if callable(data) else data
    with pytest.raises(InvalidArgument) as error:
        await create(bench, config, sample)
    assert error.value.field == field
    assert not await listed(bench)


async def test_consent_codec_and_store_are_asked_for_first(bench: CodecBench, folder: Path) -> None:
    config = raw_config()
    config.ClearField("consent")

    async def refusal(asked: CodecBench) -> tuple[str, str]:
        with pytest.raises(FailedPrecondition) as error:
            await create(asked, config, b"")
        return error.value.reason, error.value.field

    assert await refusal(bench) == ("CONSENT_REQUIRED", "config.consent")
    async with serving(FakeCodec()) as storeless:
        assert await refusal(storeless) == ("WRONG_STATE", "voice_store_dir")
    async with serving(voice_store_dir=folder, codecs=[]) as codecless:
        assert await refusal(codecless) == ("WRONG_STATE", "codecs")


async def test_a_tenant_has_so_many_voices_and_consent_may_be_waived(tmp_path: Path) -> None:
    config = raw_config()
    config.ClearField("consent")
    settings = {"voice_store_dir": tmp_path, "voices_per_tenant": 1, "require_consent": False}
    async with serving(FakeCodec(), **settings) as bench:
        with tenant("red"):
            await create(bench, config)
            with pytest.raises(ResourceExhausted) as error:
                await create(bench, config)
            assert error.value.reason == "QUOTA_SPENT"
        with tenant("blue"):
            await create(bench, config)


async def test_an_upload_that_stops_is_ended(bench: CodecBench) -> None:
    call = bench.stub.CreateVoice()
    await call.write(pb.CreateVoiceRequest(config=raw_config()))
    with pytest.raises(DeadlineExceeded) as error:
        await result(call)
    assert error.value.reason == "INPUT_IDLE"


async def test_others_see_nothing(bench: CodecBench) -> None:
    with tenant("red"):
        voice = await create(bench)
        assert await listed(bench) == [voice.id]
    with tenant("blue"):
        assert await listed(bench) == []
        for refused in (
            result(bench.stub.GetVoice(pb.GetVoiceRequest(id=voice.id))),
            delete(bench, voice.id),
            bench.speak(codes_of(1, 3), voice=voice.id),
        ):
            with pytest.raises(NotFound) as error:
                await refused
            assert error.value.reason == "VOICE_NOT_FOUND"
    answer = await result(
        bench.stub.ListVoices(pb.ListVoicesRequest(), metadata=((ALL_TENANTS, "1"),))
    )
    assert [(v.id, v.tenant) for v in answer.voices if v.tenant] == [(voice.id, "red")]
    with tenant("red"):
        assert await listed(bench) == [voice.id]


async def test_administration_deletes_anybodys(bench: CodecBench) -> None:
    with tenant("red"):
        voice = await create(bench)
    with tenant("house"):
        request = pb.DeleteVoiceRequest(id=voice.id)
        await result(bench.stub.DeleteVoice(request, metadata=((ALL_TENANTS, "1"),)))
    with tenant("red"):
        assert await listed(bench) == []
        other = await create(bench)
        with pytest.raises(NotFound) as error:
            await delete(bench, other.id[:-1])
    assert error.value.metadata["allowed"] == other.id


async def test_it_speaks_codes_and_reads_no_text(bench: CodecBench) -> None:
    voice = await create(bench)
    codes = codes_of(1, 9)
    heard = await bench.speak(codes, voice=voice.id)
    assert (heard.ready.voice, heard.ready.model) == (voice.id, "fake")
    assert heard.data == (await bench.speak(codes)).data
    with pytest.raises(InvalidArgument, match="speaks codes of fake") as error:
        await bench.speak(codes, voice=voice.id, input_kind=pb.SPEECH_INPUT_KIND_TEXT)
    assert error.value.field == "config.voice"


@pytest.mark.parametrize("name", ["joe", "voice_none"])
async def test_only_a_stored_voice_can_be_deleted(bench: CodecBench, name: str) -> None:
    with pytest.raises(NotFound) as error:
        await delete(bench, name)
    assert error.value.field == "id"


@pytest.mark.parametrize("name", ["", "..", "../x", "a\0b", "/etc", "a" * 65, "caf\u00e9"])
async def test_what_no_voice_can_be_called_is_refused(bench: CodecBench, name: str) -> None:
    for call in (delete(bench, name), result(bench.stub.GetVoice(pb.GetVoiceRequest(id=name)))):
        with pytest.raises(InvalidArgument) as error:
            await call
        assert error.value.field == "id"


async def test_the_case_twin_of_a_voice_is_no_id(bench: CodecBench) -> None:
    voice = await create(bench)
    with pytest.raises(InvalidArgument):
        await delete(bench, voice.id.upper())
    with pytest.raises(NotFound):
        await result(bench.stub.GetVoice(pb.GetVoiceRequest(id=voice.id.upper())))
    assert await listed(bench) == [voice.id]


async def test_deletion_ends_the_streams_at_their_hop(bench: CodecBench, folder: Path) -> None:
    voice = await create(bench)
    async with open_stream(bench.stub.StreamSpeech()) as call:
        await call.write(speech_config(voice=voice.id))
        await call.write(speech_codes(codes_of(1, LONG)))
        stream = messages(call)
        while not (await anext(stream)).HasField("audio"):
            pass
        await delete(bench, voice.id)
        rest = [message async for message in stream]
    finished = rest[-1].finished
    assert finished.reason == pb.SPEECH_FINISH_REASON_VOICE_DELETED
    assert 0 < finished.sample_count < LONG * FRAME
    assert not (folder / voice.id).exists()
    with pytest.raises(NotFound):
        await bench.speak(codes_of(1, 3), voice=voice.id)
    await bench.until_idle()


async def test_a_drained_voice_speaks_to_the_end(bench: CodecBench) -> None:
    voice = await create(bench)
    async with open_stream(bench.stub.StreamSpeech()) as call:
        await call.write(speech_config(voice=voice.id))
        stream = messages(call)
        assert (await anext(stream)).HasField("ready")
        await delete(bench, voice.id, drain=True)
        with pytest.raises(NotFound):
            await bench.speak(codes_of(1, 3), voice=voice.id)
        await call.write(speech_codes(codes_of(1, 20)))
        await call.done_writing()
        rest = [message async for message in stream]
    assert rest[-1].finished.reason == pb.SPEECH_FINISH_REASON_COMPLETE
    assert rest[-1].finished.sample_count == 20 * FRAME


async def test_a_stream_that_waited_while_its_voice_went_says_nothing(bench: CodecBench) -> None:
    voice = await create(bench)
    holder = bench.stub.StreamSpeech()
    await holder.write(speech_config())
    await holder.read()
    waiting = asyncio.create_task(bench.speak(codes_of(1, 9), voice=voice.id))
    while not bench.runtime.codec.slots.queued:
        await asyncio.sleep(0.005)
    await delete(bench, voice.id)
    holder.cancel()
    heard = await waiting
    assert heard.finished.reason == pb.SPEECH_FINISH_REASON_VOICE_DELETED
    assert heard.data == b""


async def test_two_processes_and_a_restart(
    bench: CodecBench, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_voices, "REFRESH_SECONDS", 0.05)
    voice = await create(bench)
    async with serving(FakeCodec(), voice_store_dir=folder) as other:
        assert await listed(other) == [voice.id]
        async with open_stream(other.stub.StreamSpeech()) as call:
            await call.write(speech_config(voice=voice.id))
            stream = messages(call)
            assert (await anext(stream)).HasField("ready")
            await delete(bench, voice.id)
            ended = [message async for message in stream][-1].finished
        assert ended.reason == pb.SPEECH_FINISH_REASON_VOICE_DELETED
        assert await listed(other) == []
        second = await create(other)
        (folder / "voice_broken").mkdir()
    async with serving(FakeCodec(), voice_store_dir=folder) as again:
        assert await listed(again) == [second.id]
        assert again.runtime.voices.damaged.keys() == {"voice_broken"}
