"""What every stream of the service has: an inbox, an end, progress, idleness, a slot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from antiphon_core.errors import AntiphonError, DeadlineExceeded

from antiphon_vocoder.session_items import EndOfInput
from antiphon_vocoder.slots import Lease
from antiphon_vocoder.speech import Progress


class ModelStream(Protocol):
    """A stream in a model process."""

    def close(self) -> None:
        """Ends it there; nothing of it comes back any more."""
        ...


Event = TypeVar("Event")
Stream = TypeVar("Stream", bound=ModelStream)


@dataclass(frozen=True)
class SessionLimits:
    """Times of a stream, in seconds; see VocoderSettings."""

    idle: float
    progress: float
    longest: float


class StreamSession(Generic[Event, Stream]):
    """State of one stream from its slot to its end.

    ``run`` is the only task that changes it. Input and the model process's messages are put into
    its inbox and handled one at a time, so that the order of events is the order of handling.

    Args:
        lease: the slot; released by ``close``.
        accepted_at: when the configuration was accepted, on ``clock``.
        emit: sends one event to the client; returns when it is on its way.
    """

    def __init__(
        self,
        *,
        lease: Lease,
        limits: SessionLimits,
        accepted_at: float,
        emit: Callable[[Event | Progress], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lease = lease
        self._limits = limits
        self._clock = clock
        self._emit_event = emit
        self._accepted_at = accepted_at
        self._stream: Stream | None = None
        """In the model process; set by ``_begin``."""
        self._inbox: asyncio.Queue[object] = asyncio.Queue()
        self._room = asyncio.Event()
        self._room.set()
        self._input_ended = False
        self._finished = False
        self._said_at = clock()
        self._idle_since: float | None = None

    def end_input(self) -> None:
        """No more input comes."""
        self._inbox.put_nowait(EndOfInput())

    def fail(self, error: AntiphonError) -> None:
        """Ends the stream with this error."""
        self._inbox.put_nowait(error)

    async def wait_for_room(self) -> None:
        """Returns when little enough input is unspoken to take more."""
        await self._room.wait()

    async def run(self) -> None:
        """Works until the input has ended and all of it is done.

        Raises:
            AntiphonError: what ended the stream early.
        """
        try:
            await self._begin()
            await self._go_on()
            while not self._finished:
                item = await self._next_item()
                if item is not None:
                    if isinstance(item, AntiphonError):
                        raise item
                    await self._handle(item)
                    await self._go_on()
        finally:
            self.close()

    def close(self) -> None:
        """Frees the slot and everything that the stream holds; a second call does nothing."""
        self._release()
        self._lease.release()

    async def _begin(self) -> None:
        """Opens the stream in the model process and says ready."""
        raise NotImplementedError

    async def _handle(self, item: object) -> None:
        """Applies one item of the inbox."""
        raise NotImplementedError

    async def _go_on(self) -> None:
        """What follows from the state after each item."""
        raise NotImplementedError

    def _release(self) -> None:
        """Gives up what the stream holds beside its slot; may be called again."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _note_idle(self, idle: bool) -> None:
        """Says whether nothing can happen before more input comes."""
        if not idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = self._clock()

    async def _next_item(self) -> object | None:
        """The next item of the inbox; None after a progress message."""
        now = self._clock()
        due = self._said_at + self._limits.progress
        if self._idle_since is not None:
            due = min(due, self._idle_since + self._limits.idle)
        try:
            async with asyncio.timeout(max(due - now, 0.0)):
                return await self._inbox.get()
        except TimeoutError:
            pass
        now = self._clock()
        if self._idle_since is not None and now >= self._idle_since + self._limits.idle:
            raise DeadlineExceeded(
                f"no input for {self._limits.idle:g} s and nothing left to say",
                reason="INPUT_IDLE",
                metadata={"limit": f"{self._limits.idle:g}"},
            )
        if now >= self._said_at + self._limits.progress:
            await self._emit(Progress(now - self._accepted_at))
        return None

    async def _emit(self, event: Event | Progress) -> None:
        await self._emit_event(event)
        self._said_at = self._clock()
