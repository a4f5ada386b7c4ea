"""A caller of StreamingRecognize and Recognize, and the word error rate."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import jiwer
import numpy as np
from antiphon.vocoder.v1 import recognition_service_pb2 as pb
from antiphon_core.rpc.streams import read_all

from tests.unit.recognition.piper_speech import pcm16

Request = pb.StreamingRecognizeRequest


def audio_requests(data: bytes, size: int = 32_000) -> list[Request]:
    """The bytes as messages of ``size`` bytes."""
    return [Request(audio=data[first : first + size]) for first in range(0, len(data), size)]


def flush(tag: str) -> Request:
    return Request(flush=pb.RecognitionFlush(tag=tag))


def manual() -> pb.TurnDetection:
    return pb.TurnDetection(mode=pb.TurnDetection.MODE_NONE)


async def recognise(
    stub: Any, requests: Iterable[Request], config: pb.RecognitionConfig | None = None
) -> list[tuple[str, Any]]:
    """(kind, message) of every response of one stream."""

    async def outgoing() -> AsyncIterator[Request]:
        yield Request(config=config or pb.RecognitionConfig())
        for request in requests:
            yield request

    responses = await read_all(stub.StreamingRecognize(outgoing()))
    kinds = [response.WhichOneof("message") for response in responses]
    return [(kind, getattr(item, kind)) for kind, item in zip(kinds, responses, strict=True)]


async def recognise_file(
    stub: Any, data: bytes, config: pb.RecognitionConfig | None = None, size: int = 100_000
) -> tuple[list[pb.TranscriptSegment], pb.RecognizeFinished]:
    """Segments and the terminal message of one file."""

    async def outgoing() -> AsyncIterator[pb.RecognizeRequest]:
        yield pb.RecognizeRequest(config=config or pb.RecognitionConfig())
        for first in range(0, len(data), size):
            yield pb.RecognizeRequest(audio=data[first : first + size])

    responses = await read_all(stub.Recognize(outgoing()))
    *segments, last = responses
    return [response.segment for response in segments], last.finished


def of(events: list[tuple[str, Any]], kind: str) -> list[Any]:
    return [message for found, message in events if found == kind]


def plain(text: str) -> str:
    return " ".join(re.sub(r"[^a-z0-9 ]", " ", text.lower()).split())


def word_error_rate(references: list[str], hypotheses: list[str]) -> float:
    return jiwer.wer([plain(text) for text in references], [plain(text) for text in hypotheses])


def encode(audio: np.ndarray, rate: int, container: str, codec: str) -> bytes:
    """The samples in a container, by PyAV."""
    import io

    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(
            np.frombuffer(pcm16(audio), "<i2")[None], format="s16", layout="mono"
        )
        frame.sample_rate = rate
        resampler = av.AudioResampler(format=stream.format, layout="mono", rate=rate)
        frames: Callable = resampler.resample
        fifo = av.AudioFifo()
        for piece in [*frames(frame), *frames(None)]:
            fifo.write(piece)
        size = stream.codec_context.frame_size or 4096
        while (piece := fifo.read(size)) or (piece := fifo.read(0, partial=True)):
            output.mux(stream.encode(piece))
        output.mux(stream.encode(None))
    return buffer.getvalue()
