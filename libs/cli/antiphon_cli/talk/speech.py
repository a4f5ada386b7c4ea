"""Speech out and speech in over REST, timed."""

from __future__ import annotations

import time
from dataclasses import dataclass

import httpx
import jiwer

from antiphon_cli.talk.audio import REALTIME_RATE, Samples, from_pcm16
from antiphon_cli.talk.http import raise_for_error


@dataclass(frozen=True)
class SpokenAudio:
    """Samples at 24 kHz and times (seconds) of one spoken text."""

    samples: Samples
    time_to_first_audio: float
    seconds: float

    @property
    def audio_seconds(self) -> float:
        """Length of the audio."""
        return len(self.samples) / REALTIME_RATE

    @property
    def real_time_factor(self) -> float:
        """Wall time over audio time; below 1 is faster than real time."""
        return self.seconds / self.audio_seconds if self.samples.size else float("inf")


async def say(
    client: httpx.AsyncClient, text: str, *, voice: str = "alloy", speed: float = 1.0
) -> SpokenAudio:
    """POSTs /v1/audio/speech for raw PCM and reads it as it comes."""
    body = {
        "model": "tts-1",
        "input": text,
        "voice": voice,
        "speed": speed,
        "response_format": "pcm",
    }
    started = time.perf_counter()
    first = 0.0
    data = bytearray()
    async with client.stream("POST", "/v1/audio/speech", json=body) as response:
        await raise_for_error(response)
        async for piece in response.aiter_bytes():
            first = first or time.perf_counter()
            data += piece
    done = time.perf_counter()
    return SpokenAudio(from_pcm16(bytes(data)), (first or done) - started, done - started)


async def speech_file(
    client: httpx.AsyncClient, text: str, *, voice: str, response_format: str, speed: float
) -> bytes:
    """POSTs /v1/audio/speech and returns the whole file in ``response_format``."""
    body = {
        "model": "tts-1",
        "input": text,
        "voice": voice,
        "speed": speed,
        "response_format": response_format,
    }
    response = await client.post("/v1/audio/speech", json=body)
    await raise_for_error(response)
    return response.content


async def transcribe(
    client: httpx.AsyncClient, audio: bytes, filename: str, *, language: str = ""
) -> str:
    """POSTs /v1/audio/transcriptions and returns the text."""
    fields = {"model": "whisper-1"} | ({"language": language} if language else {})
    response = await client.post(
        "/v1/audio/transcriptions", data=fields, files={"file": (filename, audio)}
    )
    await raise_for_error(response)
    return response.json()["text"]


_NORMALISE = jiwer.Compose(
    [
        jiwer.ToLowerCase(),
        jiwer.RemovePunctuation(),
        jiwer.RemoveMultipleSpaces(),
        jiwer.Strip(),
        jiwer.ReduceToListOfListOfWords(),
    ]
)


def word_error_rate(reference: str, hypothesis: str) -> float:
    """Word errors over reference words, case and punctuation ignored."""
    if not hypothesis.strip():
        return 1.0
    return jiwer.wer(
        reference,
        hypothesis,
        reference_transform=_NORMALISE,
        hypothesis_transform=_NORMALISE,
    )
