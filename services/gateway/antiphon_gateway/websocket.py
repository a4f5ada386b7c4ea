"""uvicorn's WebSocket with a short way for whole text frames, which are all that a live call sends.

An application that sets a tap takes them where they are read, which spares a message of a live call
a queue, a wake-up and a switch of tasks. Handshake, fragments, control frames, closing and every
error are the library's. It is fed whole frames only, so that it always stands between two frames
and any of them may pass it by.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import (
    Opcode,
    apply_mask,  # pyright: ignore[reportPrivateImportUsage]  # in C where that is built
)
from websockets.http11 import Request
from websockets.protocol import State

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent, ASGISendEvent

TAP = "antiphon.websocket.tap"
"""ASGI extension: a function that takes a :data:`Tap`, or None to set none."""
Tap = Callable[[bytes], bool]
"""Offered the payload of each text frame behind which no other waits; whether it was taken. It must
not raise. What is not taken comes as a message, as it would without a tap."""

_FINAL_TEXT = 0x81
_FINAL = 0x80
_MASKED = 0x80
_LENGTH = 0x7F
_MASK_BYTES = 4
_UNREAD_BYTES = 256 * 1024
"""What may wait for the application before the socket is left unread."""


class _Inbox:
    """The part of ``asyncio.Queue`` that one reader on one loop needs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._messages: deque[ASGIReceiveEvent] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put_nowait(self, message: ASGIReceiveEvent) -> None:
        self._messages.append(message)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def get(self) -> ASGIReceiveEvent:
        while not self._messages:
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._messages.popleft()

    def empty(self) -> bool:
        return not self._messages


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """For ``uvicorn.Config(ws=...)``; without extensions, of which the short way knows nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.queue: Any = _Inbox(self.loop)
        self._cut = bytearray()
        """The beginning of a frame whose rest is still to come."""
        self._needed = 0
        """Bytes that the cut frame has to have before it is worth another look."""
        self._is_fragmented = False
        self._began_early = False
        self._unread_bytes = 0
        self._largest = self.config.ws_max_size
        self._tap: Tap | None = None

    def handle_connect(self, event: Request) -> None:
        """Answers the handshake; the application's scope offers the tap."""
        super().handle_connect(event)
        if self.response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            extensions: dict[str, Any] = self.scope.setdefault("extensions", {})
            extensions[TAP] = self._set_tap

    def data_received(self, data: bytes) -> None:
        """Cuts the stream into frames."""
        if not self.handshake_complete or self.close_sent or self._began_early:
            # Frames before the handshake is answered leave the library inside of one.
            self._began_early = self._began_early or self.handshake_initiated
            if self._cut:
                data, self._cut = bytes(self._cut) + data, bytearray()
            super().data_received(data)
            return
        if self._cut:
            self._cut += data
            if len(self._cut) < self._needed:
                return
            data, self._cut = bytes(self._cut), bytearray()
        self._take_frames(data)

    async def receive(self) -> ASGIReceiveEvent:
        """The next message; reads on once all have been taken."""
        message = await self.queue.get()
        if self.queue.empty():
            self._unread_bytes = 0
            if self.read_paused:
                self.read_paused = False
                self.transport.resume_reading()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        """Sends; a text frame of an open socket needs no state of the library."""
        text = message.get("text") if message["type"] == "websocket.send" else None
        if (
            text is None
            or not self.handshake_complete
            or self.close_sent
            or self.disconnected
            or self.conn.state is not State.OPEN
            or not self.writable.is_set()
        ):
            await super().send(message)
        else:
            self.transport.write(_text_frame(text.encode()))

    def _take_frames(self, data: bytes) -> None:
        start, end = 0, len(data)
        while start < end:
            header, size = _measure(data, start)
            if start + header + size > end and size <= self._largest:
                self._cut = bytearray(data[start:] if start else data)
                self._needed = header + size
                return
            stop = start + header + size
            if not self._take_text(data, start, start + header, stop):
                # The first byte of a frame that is too large, or of no frame, is enough to fail.
                self._pass_on(data[start:stop])
                if self.close_sent or self.transport.is_closing():
                    return
            start = stop

    def _take_text(self, data: bytes, start: int, begin: int, stop: int) -> bool:
        """Delivers a whole masked text frame; whether it was one."""
        if (
            data[start] != _FINAL_TEXT
            or not data[start + 1] & _MASKED
            or stop - begin > self._largest
            or self._is_fragmented
            or self.conn.state is not State.OPEN
        ):
            return False
        payload = apply_mask(data[begin:stop], data[begin - _MASK_BYTES : begin])
        tap = self._tap
        if tap is not None and self.queue.empty() and tap(payload):
            return True
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            return False
        self.queue.put_nowait({"type": "websocket.receive", "text": text})
        self._unread_bytes += stop - begin
        if self._unread_bytes > _UNREAD_BYTES and not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()
        return True

    def _set_tap(self, tap: Tap | None) -> None:
        self._tap = tap

    def _pass_on(self, frame: bytes) -> None:
        opcode, is_final = frame[0] & 0x0F, bool(frame[0] & _FINAL)
        if opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            self._is_fragmented = not is_final
        super().data_received(frame)


def _measure(data: bytes, start: int) -> tuple[int, int]:
    """Bytes of the header at ``start``, mask included, and of the payload.

    Of a header that is cut itself, what it needs at least: more than there is.
    """
    available = len(data) - start
    if available < 2:
        return 2, 0
    second = data[start + 1]
    size, header = second & _LENGTH, 2
    if size >= 126:
        width = 2 if size == 126 else 8
        header += width
        if available < header:
            return header, 0
        size = int.from_bytes(data[start + 2 : start + header], "big")
    return header + (_MASK_BYTES if second & _MASKED else 0), size


def _text_frame(payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        head = bytes((_FINAL_TEXT, size))
    elif size < 1 << 16:
        head = b"\x81\x7e" + size.to_bytes(2, "big")
    else:
        head = b"\x81\x7f" + size.to_bytes(8, "big")
    return head + payload
