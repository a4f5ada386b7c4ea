"""What the drivers have in common: a question as 24 kHz PCM, sent at a microphone's pace."""

from __future__ import annotations

import asyncio
import wave
from collections.abc import Awaitable, Callable
from pathlib import Path

RATE = 24_000
FRAME_MS = 20
FRAME_BYTES = 2 * RATE * FRAME_MS // 1000


def question(file: str) -> bytes:
    """The samples of a 24 kHz, 16-bit, mono WAV."""
    with wave.open(str(Path(file)), "rb") as wav:
        return wav.readframes(wav.getnframes())


class Microphone:
    """Sends frames without end: what was said, else silence."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._send = send
        self._said = bytearray()
        self._task: asyncio.Task[None] | None = None

    def say(self, pcm: bytes) -> None:
        """Speaks from now on."""
        self._said += pcm

    async def __aenter__(self) -> Microphone:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_exception: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            frame = bytes(self._said[:FRAME_BYTES]).ljust(FRAME_BYTES, b"\0")
            del self._said[:FRAME_BYTES]
            await self._send(frame)
            due += FRAME_MS / 1000
            await asyncio.sleep(max(0.0, due - loop.time()))
