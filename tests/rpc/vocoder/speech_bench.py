"""A speech service on a port of its own: with real workers, or with a scripted voice in threads."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
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
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.server import RpcServer
from antiphon_core.rpc.streams import messages, open_stream
from antiphon_vocoder.config import VocoderSettings
from antiphon_vocoder.engine.loop import EngineLoop
from antiphon_vocoder.messages import (
    EngineConfig,
    EngineInbound,
    EngineReady,
    PhonemizerInbound,
    VoiceFile,
)
from antiphon_vocoder.runtime import SpeechRuntime
from antiphon_vocoder.servicer import VocoderService
from antiphon_vocoder.text import worker as phonemizer_worker
from antiphon_vocoder.tts.piper import Latent
from antiphon_vocoder.voices import load_catalog
from support.waiting import until

RATE = 22050
SAMPLES_PER_ID = 400


class ToneVoice:
    """Speaks each clause as a tone whose pitch and length follow from its phoneme ids."""

    windowed = True
    sample_rate = RATE
    samples_per_frame = 1

    def __init__(self) -> None:
        self.hop_seconds = 0.0
        self.hops = 0
        self.fail = False

    def encode(self, phoneme_ids: list[int], *, speed: float, noiseless: bool) -> Latent:
        self._hop()
        if self.fail:
            raise RuntimeError("scripted failure")
        count = int(len(phoneme_ids) * SAMPLES_PER_ID / speed)
        pitch = 200 + sum(phoneme_ids) % 500
        tone = 0.3 * np.sin(2 * np.pi * pitch * np.arange(1, count + 1) / RATE)
        return Latent(count, (tone.astype(np.float32),))

    def decode(self, latent: Latent, start: int, stop: int) -> np.ndarray:
        self._hop()
        return latent.tensors[0][start:stop]

    def _hop(self) -> None:
        self.hops += 1
        if self.hop_seconds:
            time.sleep(self.hop_seconds)


class ScriptedVoices:
    """LoadedVoices with one ToneVoice behind every name."""

    def __init__(self, voice: ToneVoice) -> None:
        self._voice = voice

    def sample_rate(self, voice: str) -> int:
        return RATE

    def get(self, voice: str) -> Any:
        return self._voice


def scripted_workers(voice: ToneVoice) -> Any:
    """Stands for WorkerProcess: the loop and espeak-ng run in threads of this process."""

    def serve_engine(endpoint: Endpoint) -> None:
        endpoint.wait(None)
        config, *rest = endpoint.drain()
        assert isinstance(config, EngineConfig)
        assert isinstance(config.voices[0], VoiceFile)
        loop = EngineLoop(endpoint, config, ScriptedVoices(voice))  # pyright: ignore[reportArgumentType]
        loop.accept(rest)
        endpoint.send(EngineReady(voice="joe", cost=0.1, windowed=True))
        loop.run()

    def make_worker(*, name: str, module: str, **options: Any) -> LocalTransport:
        if name == "speech":
            return LocalTransport(serve_engine, worker_inbound=EngineInbound, **options)
        return LocalTransport(phonemizer_worker.serve, worker_inbound=PhonemizerInbound, **options)

    return make_worker


@dataclass
class Spoken:
    """All that one stream answered."""

    kinds: list[str] = field(default_factory=list)
    data: bytes = b""
    messages: list[pb.StreamSpeechResponse] = field(default_factory=list)

    def add(self, message: pb.StreamSpeechResponse) -> None:
        kind = message.WhichOneof("message") or ""
        self.kinds.append(kind)
        self.messages.append(message)
        if kind == "audio":
            self.data += message.audio.data

    @property
    def samples(self) -> np.ndarray:
        return np.frombuffer(self.data, "<i2")

    @property
    def marks(self) -> list[tuple[int, int]]:
        return [(m.mark.input_offset, m.mark.sample) for m in self.messages if m.HasField("mark")]

    @property
    def ready(self) -> pb.SpeechReady:
        return self.messages[0].ready

    @property
    def finished(self) -> pb.SpeechFinished:
        return self.messages[-1].finished


def config(**fields: Any) -> pb.StreamSpeechRequest:
    fields.setdefault("noise_key", 1)
    return pb.StreamSpeechRequest(config=pb.SpeechConfig(**fields))


def text(value: str) -> pb.StreamSpeechRequest:
    return pb.StreamSpeechRequest(text=value)


FLUSH = pb.StreamSpeechRequest(flush=pb.SpeechFlush())
CLEAR = pb.StreamSpeechRequest(clear=pb.SpeechClear())


class SpeechBench:
    """A running service and a stub to it."""

    def __init__(self, runtime: SpeechRuntime, stub: Any, lifecycle: Lifecycle, port: int) -> None:
        self.port = port
        self.runtime = runtime
        self.stub = stub
        self.lifecycle = lifecycle

    async def send(self, requests: Iterable[pb.StreamSpeechRequest]) -> Spoken:
        """One whole stream; raises its typed error."""
        spoken = Spoken()
        async with open_stream(self.stub.StreamSpeech(iter(requests))) as call:
            async for message in messages(call):
                spoken.add(message)
        return spoken

    async def say(
        self, value: str, *, pieces: Iterable[str] | None = None, **fields: Any
    ) -> Spoken:
        """Speaks a text, by default as one piece."""
        parts = [value] if pieces is None else pieces
        return await self.send([config(**fields), *(text(part) for part in parts)])

    async def until_idle(self) -> None:
        """Waits until no stream holds anything."""
        await until(lambda: not (self.runtime.slots.busy or self.runtime.engine.stream_count), 30)


@asynccontextmanager
async def running(voice: ToneVoice | None = None, **settings: Any) -> AsyncIterator[SpeechBench]:
    """A service; with a ToneVoice no process is started."""
    lifecycle = Lifecycle()
    options = {} if voice is None else {"make_worker": scripted_workers(voice)}
    runtime = SpeechRuntime(
        VocoderSettings(**settings), load_catalog(None, ""), lifecycle, **options
    )
    server = RpcServer(service="vocoder", bind="127.0.0.1:0", lifecycle=lifecycle)
    server.add(
        add_VocoderServiceServicer_to_server,
        VocoderService(runtime),
        "antiphon.vocoder.v1.VocoderService",
    )
    lifecycle.booting("test")
    port = await server.start()
    await runtime.start()
    lifecycle.ready()
    channel = open_channel(f"127.0.0.1:{port}")
    try:
        yield SpeechBench(runtime, VocoderServiceStub(channel), lifecycle, port)
    finally:
        await channel.close()
        await server.stop(0.0)
        await runtime.stop(2.0)
