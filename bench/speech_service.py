"""The vocoder as a process of its own, and callers of its streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import soxr
from antiphon.common.v1 import audio_pb2
from antiphon.vocoder.v1 import recognition_service_pb2 as recognition_pb
from antiphon.vocoder.v1 import vocoder_service_pb2 as pb
from antiphon.vocoder.v1.recognition_service_pb2_grpc import RecognitionServiceStub
from antiphon.vocoder.v1.vocoder_service_pb2_grpc import VocoderServiceStub
from antiphon_core.errors import AntiphonError
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.streams import messages, open_stream, read_all, result
from antiphon_vocoder.metrics import PlayerModel

from bench.service import service_process

RATE = 22_050
"""Hz of the packaged voice."""
HEARD_RATE = 16_000
TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Please open the window before you leave the house. It will be a warm day.",
    "My sister bought a red bicycle at the market yesterday.",
    "The train to the city leaves at nine in the morning. He could not find his keys.",
    "We are going to visit our grandparents on Sunday, if the weather stays fine.",
    "The doctor said that she should drink more water.",
    "It was raining all night and the streets were wet.",
    "I would like a cup of coffee with milk and sugar, please.",
)
_BLOCK = 3_200
"""Bytes of one live message: 100 ms."""


@dataclass
class SpeechService:
    """A running ``python -m antiphon_vocoder`` and a channel to it."""

    process: asyncio.subprocess.Process
    channel: grpc.aio.Channel

    @property
    def speech(self) -> Any:
        """Calls of VocoderService."""
        return VocoderServiceStub(self.channel)

    @property
    def recognition(self) -> Any:
        """Calls of RecognitionService."""
        return RecognitionServiceStub(self.channel)

    async def slots(self) -> pb.GetSlotsResponse:
        """Slots now."""
        return await result(self.speech.GetSlots(pb.GetSlotsRequest()))

    def resident_bytes(self) -> int:
        """Memory of the front and of its model and recogniser processes."""
        return sum(one.memory_info().rss for one in self._processes())

    def cpu_seconds(self) -> float:
        """Processor time of the same processes so far."""
        times = [one.cpu_times() for one in self._processes()]
        return sum(one.user + one.system for one in times)

    def _processes(self) -> list[psutil.Process]:
        front = psutil.Process(self.process.pid)
        return [front, *front.children(recursive=True)]


@asynccontextmanager
async def speech_service(run_dir: Path, *flags: str) -> AsyncIterator[SpeechService]:
    """Starts the service with its default models and stops it after the block.

    Raises:
        RuntimeError: it did not become ready; with the end of its log.
    """
    async with service_process("antiphon_vocoder", run_dir / "vocoder.log", *flags) as started:
        process, address = started
        channel = open_channel(address)
        try:
            yield SpeechService(process, channel)
        finally:
            await channel.close()


@dataclass
class Spoken:
    """What came of one speech stream."""

    began: float
    first: float = 0.0
    """Clock at the first audio; 0 without any."""
    last: float = 0.0
    seconds: float = 0.0
    spoken_through: int = 0
    """Input offset of the last mark."""
    finished: int = 0
    error: str = ""
    """ErrorReason of a stream that failed."""
    retry: bool = False
    player: PlayerModel = field(default_factory=PlayerModel)
    audio: list[bytes] = field(default_factory=list)

    def samples(self) -> np.ndarray:
        """The audio as (n,) float32 at 16 kHz."""
        native = np.frombuffer(b"".join(self.audio), "<i2").astype(np.float32) / 32768
        return soxr.resample(native, RATE, HEARD_RATE).astype(np.float32)


async def speak(
    service: SpeechService, pieces: Iterable[str | None], *, key: int | None = 1, keep: bool = True
) -> Spoken:
    """Speaks the joined pieces and replays the arrivals through a player; errors are kept.

    A piece that is None flushes.
    """
    config = pb.SpeechConfig(noise_key=key)

    async def requests() -> AsyncIterator[pb.StreamSpeechRequest]:
        yield pb.StreamSpeechRequest(config=config)
        for piece in pieces:
            if piece is None:
                yield pb.StreamSpeechRequest(flush=pb.SpeechFlush())
            else:
                yield pb.StreamSpeechRequest(text=piece)

    spoken = Spoken(time.monotonic())
    try:
        async with open_stream(service.speech.StreamSpeech(requests())) as call:
            async for response in messages(call):
                _note(spoken, response, keep=keep)
    except AntiphonError as error:
        spoken.error, spoken.retry = error.reason, error.retry_after is not None
    return spoken


def _note(spoken: Spoken, response: pb.StreamSpeechResponse, *, keep: bool) -> None:
    if response.HasField("audio"):
        now = time.monotonic()
        seconds = response.audio.sample_count / RATE
        spoken.first = spoken.first or now
        spoken.last = now
        spoken.seconds += seconds
        spoken.player.arrive(now, seconds)
        if keep:
            spoken.audio.append(response.audio.data)
    elif response.HasField("mark"):
        spoken.spoken_through = response.mark.input_offset
    spoken.finished += response.HasField("finished")


def pcm16(audio: np.ndarray) -> bytes:
    """Little-endian 16-bit bytes of samples (n,) in -1..1."""
    return (np.clip(audio, -1.0, 1.0) * 32767).astype("<i2").tobytes()


@dataclass
class Heard:
    """What came of one recognition stream."""

    finals: list[str] = field(default_factory=list)
    finished: int = 0
    error: str = ""

    @property
    def text(self) -> str:
        """All finals."""
        return " ".join(text for text in self.finals if text)


async def listen(
    service: SpeechService, audio: np.ndarray, *, paced: bool = False, manual: bool = False
) -> Heard:
    """Recognises samples (n,) at 16 kHz live; ``paced`` sends them in real time."""
    data = pcm16(audio)
    modes = recognition_pb.TurnDetection
    turns = modes(mode=modes.MODE_NONE if manual else modes.MODE_UNSPECIFIED)
    message = recognition_pb.StreamingRecognizeRequest

    async def requests() -> AsyncIterator[recognition_pb.StreamingRecognizeRequest]:
        yield message(config=recognition_pb.RecognitionConfig(turn_detection=turns))
        began = time.monotonic()
        for first in range(0, len(data), _BLOCK):
            if paced:
                due = began + first / (2 * HEARD_RATE)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            yield message(audio=data[first : first + _BLOCK])
        if manual:
            yield message(flush=recognition_pb.RecognitionFlush())

    heard = Heard()
    try:
        async with open_stream(service.recognition.StreamingRecognize(requests())) as call:
            async for response in messages(call):
                if response.HasField("final"):
                    heard.finals.append(response.final.text.strip())
                heard.finished += response.HasField("finished")
    except AntiphonError as error:
        heard.error = error.reason
    return heard


async def recognise_file(
    service: SpeechService, audio: np.ndarray
) -> recognition_pb.RecognizeFinished:
    """Recognises samples (n,) at 16 kHz as a whole file."""
    form = audio_pb2.AudioFormat(encoding=audio_pb2.AUDIO_ENCODING_PCM16, sample_rate_hz=HEARD_RATE)
    data = pcm16(audio)
    message = recognition_pb.RecognizeRequest

    async def requests() -> AsyncIterator[recognition_pb.RecognizeRequest]:
        yield message(config=recognition_pb.RecognitionConfig(format=form))
        for first in range(0, len(data), 1 << 19):
            yield message(audio=data[first : first + (1 << 19)])

    responses = await read_all(service.recognition.Recognize(requests()))
    return responses[-1].finished
