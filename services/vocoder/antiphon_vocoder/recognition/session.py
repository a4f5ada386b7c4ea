"""The front's end of one live stream or file job: what the worker says about it, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from antiphon_core.errors import AntiphonError, InvalidArgument, Unavailable

from antiphon_vocoder.recognition.messages import Audio, Consumed

CREDIT_BYTES = 1 << 20
"""Audio on its way to the worker, beyond which the caller has to wait."""


class Session:
    """One stream or job of the worker; used on the event loop only.

    Args:
        number: its number in messages.
        send: sends a message to the worker that the session belongs to.
        on_consumed: told how many bytes of audio the worker has taken; None for nobody.
    """

    def __init__(
        self,
        number: int,
        send: Callable[[object], None],
        on_consumed: Callable[[int], None] | None = None,
    ) -> None:
        self.number = number
        self._send = send
        self._on_consumed = on_consumed
        self._messages: asyncio.Queue[object] = asyncio.Queue()
        self._room = asyncio.Event()
        self._room.set()
        self._underway = 0
        self._loss: AntiphonError | None = None

    def send(self, message: object) -> None:
        """Sends a message that is about this session.

        Raises:
            AntiphonError: what ended the session.
        """
        if self._loss is not None:
            raise self._loss
        self._send(message)

    async def send_audio(self, data: bytes) -> None:
        """Sends audio; waits while the worker has too much of it.

        Raises:
            AntiphonError: what ended the session.
        """
        await self._room.wait()
        self._push(data)

    def push_audio(self, data: bytes) -> None:
        """Sends audio of a caller that counts its credit.

        Raises:
            AntiphonError: what ended the session.
            InvalidArgument: the caller has no credit for so much.
        """
        if self._underway + len(data) > CREDIT_BYTES:
            raise InvalidArgument(
                f"the stream has more than {CREDIT_BYTES} bytes of audio without credit",
                reason="STREAM_PROTOCOL",
                field="audio",
                metadata={"limit": str(CREDIT_BYTES)},
            )
        self._push(data)

    async def next(self) -> object:
        """The worker's next message about this session.

        Raises:
            AntiphonError: what ended the session, after the messages before it.
        """
        message = await self._messages.get()
        if isinstance(message, AntiphonError):
            raise message
        return message

    def deliver(self, message: object) -> None:
        """Takes a message of the worker."""
        if isinstance(message, Consumed):
            self._underway -= message.byte_count
            if self._underway < CREDIT_BYTES:
                self._room.set()
            if self._on_consumed is not None:
                self._on_consumed(message.byte_count)
        else:
            self._messages.put_nowait(message)

    def end(self, error: AntiphonError) -> None:
        """Ends the session behind the messages so far; the first error stays."""
        if self._loss is None:
            self._loss = error
            self._messages.put_nowait(error)
            self._room.set()

    def _push(self, data: bytes) -> None:
        self.send(Audio(self.number, data))
        self._underway += len(data)
        if self._underway >= CREDIT_BYTES:
            self._room.clear()


def worker_died(how: str, *, will_restart: bool = True) -> Unavailable:
    """The error of everything that a dead worker had in hand."""
    fate = "it restarts, so the call can be repeated" if will_restart else "it was given up"
    return Unavailable(
        f"the recogniser process died ({how}); {fate}",
        reason="WORKER_DIED",
        retry_after=1.0 if will_restart else None,
    )
