"""The ordered send queue of one socket: control events are never dropped, audio goes by credit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from antiphon_gateway.realtime import events
from antiphon_gateway.realtime.commands import AudioTag, Send

MAX_UNSENT_AUDIO_BYTES = 256 * 1024
MAX_UNSENT_AUDIO_SECONDS = 2.0
MAX_QUEUED_EVENTS = 20_000


class SlowReader(Exception):
    """The client takes nothing; its socket is to be closed."""


class Outbox:
    """Queued events in order, sent by one task.

    Args:
        write: sends one text frame and returns once the socket took it.
        on_audio_sent: called after each audio event has left.
        stall_seconds: longest time without progress of the socket.
    """

    def __init__(
        self,
        write: Callable[[str], Awaitable[None]],
        on_audio_sent: Callable[[AudioTag], None],
        stall_seconds: float,
    ) -> None:
        self._write = write
        self._on_audio_sent = on_audio_sent
        self._stall_seconds = stall_seconds
        self._queue: deque[Send] = deque()
        self._filled = asyncio.Event()
        self._credit = asyncio.Event()
        self._credit.set()
        self._unsent_bytes = 0
        self._unsent_seconds = 0.0
        self._finishing = False

    def put(self, item: Send) -> None:
        """Queues an event.

        Raises:
            SlowReader: more events wait than any reader that makes progress leaves waiting.
        """
        if len(self._queue) >= MAX_QUEUED_EVENTS:
            raise SlowReader
        self._queue.append(item)
        self._filled.set()
        if item.audio is not None:
            self._count(item.audio, 1)

    def silence(self, lane: str, generation: int) -> None:
        """Drops queued audio of a lane that is older than the generation."""
        kept: deque[Send] = deque()
        for item in self._queue:
            audio = item.audio
            if audio is not None and audio.lane == lane and audio.generation < generation:
                self._count(audio, -1)
            else:
                kept.append(item)
        self._queue = kept

    def finish(self) -> None:
        """Lets ``run`` return once everything that is queued has been sent."""
        self._finishing = True
        self._filled.set()

    async def audio_credit(self) -> None:
        """Waits until more audio may be queued, so that a slow socket stalls its own voice."""
        await self._credit.wait()

    async def run(self) -> None:
        """Sends until ``finish``.

        Raises:
            SlowReader: the socket made no progress for the stall time.
        """
        while True:
            while not self._queue:
                if self._finishing:
                    return
                self._filled.clear()
                await self._filled.wait()
            item = self._queue.popleft()
            try:
                async with asyncio.timeout(self._stall_seconds):
                    await self._write(events.encode(item.event).decode())
            except TimeoutError:
                raise SlowReader from None
            if item.audio is not None:
                self._count(item.audio, -1)
                self._on_audio_sent(item.audio)

    def _count(self, audio: AudioTag, sign: int) -> None:
        self._unsent_bytes += sign * audio.byte_count
        self._unsent_seconds += sign * audio.seconds
        if (
            self._unsent_bytes < MAX_UNSENT_AUDIO_BYTES
            and self._unsent_seconds < MAX_UNSENT_AUDIO_SECONDS
        ):
            self._credit.set()
        else:
            self._credit.clear()
