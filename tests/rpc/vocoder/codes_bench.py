"""A service with codecs: a scripted one in a thread, or checkpoints in the real process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from antiphon.vocoder.v1 import vocoder_service_pb2 as pb
from antiphon.vocoder.v1.vocoder_service_pb2_grpc import (
    VocoderServiceStub,
    add_VocoderServiceServicer_to_server,
)
from antiphon_core.ipc.endpoint import Endpoint
from antiphon_core.ipc.local import LocalTransport
from antiphon_core.ipc.worker import WorkerProcess
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.server import RpcServer
from antiphon_core.rpc.streams import messages, open_stream
from antiphon_vocoder.codec_engine.boot import boot
from antiphon_vocoder.codec_messages import CodecEngineConfig, CodecEngineInbound
from antiphon_vocoder.config import VocoderSettings
from antiphon_vocoder.runtime import SpeechRuntime
from antiphon_vocoder.servicer import VocoderService
from antiphon_vocoder.voices import load_catalog
from speech_bench import ToneVoice, scripted_workers
from support.fake_codec import CODEBOOKS, SIZE, FakeCodec
from support.waiting import until

FLUSH = pb.SpeechFlush()
CLEAR = pb.SpeechClear()
CODES = pb.SPEECH_INPUT_KIND_CODES


Serve = Callable[[Endpoint], None]


def codec_workers(codec: FakeCodec | Serve | None) -> Any:
    """Stands for WorkerProcess: speech is scripted; the codec's loop runs in a thread, or in its
    real process where no codec is given. A function runs in the thread in place of the loop."""
    speech = scripted_workers(ToneVoice())

    def serve(endpoint: Endpoint) -> None:
        if callable(codec):
            return codec(endpoint)
        endpoint.wait(None)
        config, *rest = endpoint.drain()
        assert isinstance(config, CodecEngineConfig)
        loop = boot(endpoint, config, lambda *_: codec)  # pyright: ignore[reportArgumentType]
        loop.accept(rest)
        loop.run()

    def make_worker(*, name: str, module: str, **options: Any) -> Any:
        if name != "codec":
            return speech(name=name, module=module, **options)
        if codec is None:
            return WorkerProcess(name=name, module=module, **options)
        return LocalTransport(serve, worker_inbound=CodecEngineInbound, **options)

    return make_worker


def codes_of(seed: int, count: int, codebooks: int = CODEBOOKS) -> np.ndarray:
    """Codes (count, codebooks) without the scripted ones."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, SIZE - 2, (count, codebooks), dtype=np.int32)


def frames(codes: np.ndarray, frame_rate: float = 12.5) -> dict[str, Any]:
    """A CodeFrames message of codes (n, codebooks)."""
    return {
        "codes": codes.reshape(-1).tolist(),
        "codebook_count": codes.shape[1] if codes.ndim == 2 else CODEBOOKS,
        "frame_rate": frame_rate,
    }


@dataclass
class Heard:
    """All that one stream answered."""

    kinds: list[str] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)
    data: bytes = b""

    def add(self, message: Any) -> None:
        kind = message.WhichOneof("message") or ""
        self.kinds.append(kind)
        self.messages.append(message)
        if kind == "audio":
            assert message.audio.first_sample == sum(
                m.audio.sample_count for m in self.messages[:-1] if m.HasField("audio")
            )
            self.data += message.audio.data

    @property
    def samples(self) -> np.ndarray:
        return np.frombuffer(self.data, "<i2")

    @property
    def marks(self) -> list[tuple[int, int]]:
        return [(m.mark.input_offset, m.mark.sample) for m in self.messages if m.HasField("mark")]

    @property
    def codes(self) -> list[int]:
        return [code for m in self.messages if m.HasField("codes") for code in m.codes.codes]

    @property
    def ready(self) -> Any:
        return self.messages[0].ready

    @property
    def finished(self) -> Any:
        assert self.kinds.count("finished") == 1
        return self.messages[-1].finished


class CodecBench:
    """A running service and a stub to it."""

    def __init__(self, runtime: SpeechRuntime, stub: Any) -> None:
        self.runtime = runtime
        self.stub = stub

    async def hear(self, call: Any) -> Heard:
        """Everything that a call answers; raises its typed error."""
        heard = Heard()
        async with open_stream(call) as stream:
            async for message in messages(stream):
                heard.add(message)
        return heard

    async def speak(
        self, codes: np.ndarray, *, pieces: Iterable[np.ndarray] | None = None, **config: Any
    ) -> Heard:
        """StreamSpeech with codes, by default in one piece."""
        requests = [speech_config(**config)]
        requests += [speech_codes(piece) for piece in ([codes] if pieces is None else pieces)]
        return await self.hear(self.stub.StreamSpeech(iter(requests)))

    async def decode(
        self, codes: np.ndarray, *, pieces: Iterable[np.ndarray] | None = None, **config: Any
    ) -> Heard:
        """DecodeCodes, by default in one piece."""
        requests = [pb.DecodeCodesRequest(config=pb.DecodeConfig(**config))]
        for piece in [codes] if pieces is None else pieces:
            requests.append(pb.DecodeCodesRequest(codes=frames(piece)))
        return await self.hear(self.stub.DecodeCodes(iter(requests)))

    async def encode(self, parts: Iterable[bytes], **config: Any) -> Heard:
        """EncodeAudio."""
        requests = [pb.EncodeAudioRequest(config=pb.EncodeConfig(**config))]
        requests += [pb.EncodeAudioRequest(audio=part) for part in parts]
        return await self.hear(self.stub.EncodeAudio(iter(requests)))

    async def until_idle(self) -> None:
        """Waits until no stream holds anything."""
        codec = self.runtime.codec
        await until(
            lambda: not (codec.slots.busy or (codec.engine and codec.engine.stream_count)), 30
        )


def speech_config(**config: Any) -> pb.StreamSpeechRequest:
    config.setdefault("input_kind", CODES)
    return pb.StreamSpeechRequest(config=pb.SpeechConfig(**config))


def speech_codes(codes: np.ndarray) -> pb.StreamSpeechRequest:
    return pb.StreamSpeechRequest(codes=frames(codes))


@asynccontextmanager
async def serving(
    codec: FakeCodec | Serve | None = None, **settings: Any
) -> AsyncIterator[CodecBench]:
    """A service; with a FakeCodec its process is a thread."""
    lifecycle = Lifecycle()
    settings.setdefault("codecs", ["fake=nowhere"])
    settings.setdefault("codec_rungs", (1, 4, 16, 64))
    runtime = SpeechRuntime(
        VocoderSettings(**settings),
        load_catalog(None, ""),
        lifecycle,
        make_worker=codec_workers(codec),
    )
    server = RpcServer(service="vocoder", bind="127.0.0.1:0", lifecycle=lifecycle)
    server.add(
        add_VocoderServiceServicer_to_server,
        VocoderService(runtime),
        "antiphon.vocoder.v1.VocoderService",
    )
    lifecycle.booting("test")
    port = await server.start()
    channel = open_channel(f"127.0.0.1:{port}")
    try:
        await runtime.start()
        lifecycle.ready()
        yield CodecBench(runtime, VocoderServiceStub(channel))
    finally:
        await channel.close()
        await server.stop(0.0)
        await runtime.stop(5.0)
