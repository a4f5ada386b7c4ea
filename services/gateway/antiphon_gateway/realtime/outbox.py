"""Sends one client's queue, paces its audio by the estimated playback, and gives a stall up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from antiphon_core import metrics

from antiphon_gateway.realtime.commands import AudioTag, Send
from antiphon_gateway.realtime.send_queue import QueueFull, SendQueue

PLAYER_BUFFER_SECONDS = 0.1
"""A gap up to this length is hidden by the buffer of any player."""

_underruns = metrics.counter(
    "realtime_underruns_total", "Gaps over 100 ms in the audio of a reply as the client plays it"
)


class SlowReader(Exception):
    """The client takes nothing; its socket is to be closed."""


class Outbox:
    """Queued events in order, sent by one task.

    Args:
        write: sends one text frame and returns once the socket took it.
        on_audio_sent: called after each audio event has left.
        stall_seconds: longest time without progress of the socket.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        write: Callable[[bytes], Awaitable[None]],
        on_audio_sent: Callable[[AudioTag], None],
        stall_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._write = write
        self._on_audio_sent = on_audio_sent
        self._stall_seconds = stall_seconds
        self._clock = clock
        self._queue = SendQueue()
        self._filled = asyncio.Event()
        self._credit = asyncio.Event()
        self._credit.set()
        self._play_end: dict[str, float] = {}
        self._sounding = ""
        self._finishing = False
        self.underruns = 0
        """Gaps that a player with a buffer of 100 ms could not hide."""

    def put(self, item: Send) -> None:
        """Queues an event.

        Raises:
            SlowReader: more waits than any reader that makes progress leaves waiting.
        """
        try:
            self._queue.put(item)
        except QueueFull:
            raise SlowReader from None
        self._filled.set()
        if item.audio is not None:
            self._show_credit()

    def silence(self, lane: str, generation: int) -> None:
        """Drops queued audio of a lane that is older than the generation."""
        self._queue.silence(lane, generation)
        self._play_end.pop(lane, None)
        self._show_credit()

    def finish(self) -> None:
        """Lets ``run`` return once everything that is queued has been sent."""
        self._finishing = True
        self._filled.set()

    def forget(self, lane: str) -> None:
        """A lane is over."""
        self._play_end.pop(lane, None)

    async def audio_credit(self, lane: str, lead: float) -> None:
        """Waits until more audio may be queued.

        Args:
            lane: whose audio.
            lead: seconds that it may be ahead of its estimated playback.
        """
        while True:
            await self._credit.wait()
            ahead = self._play_end.get(lane, 0.0) - self._clock()
            if ahead < lead:
                return
            await asyncio.sleep(ahead - lead + 0.001)

    async def run(self) -> None:
        """Sends until ``finish``.

        Raises:
            SlowReader: the socket made no progress for the stall time.
        """
        queue = self._queue
        while True:
            while not len(queue):
                if self._finishing:
                    return
                self._filled.clear()
                await self._filled.wait()
            frame = queue.pop()
            try:
                async with asyncio.timeout(self._stall_seconds):
                    await self._write(frame.data)
            except TimeoutError:
                raise SlowReader from None
            if frame.audio is not None:
                queue.sent(frame.audio)
                self._show_credit()
                self._plays(frame.audio)
                self._on_audio_sent(frame.audio)

    def _plays(self, audio: AudioTag) -> None:
        now = self._clock()
        end = self._play_end.get(audio.lane, 0.0)
        is_later = end > 0 and self._sounding == audio.response_id
        if is_later and now > end + PLAYER_BUFFER_SECONDS:
            self.underruns += 1
            _underruns.inc()
        self._sounding = audio.response_id
        self._play_end[audio.lane] = max(now, end) + audio.seconds

    def _show_credit(self) -> None:
        if self._queue.has_credit:
            self._credit.set()
        else:
            self._credit.clear()
