"""A realtime client of few instructions, for many connections from one core: prepared frames out,
and a look for event types in what comes back."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import struct
from typing import Any

_MASK = b"\x01\x02\x03\x04"


def text_frame(text: str) -> bytes:
    """A masked WebSocket text frame."""
    data = text.encode()
    size = len(data)
    length = (
        bytes([0x81, 0x80 | size])
        if size < 126
        else b"\x81\xfe" + struct.pack(">H", size)
        if size < 65_536
        else b"\x81\xff" + struct.pack(">Q", size)
    )
    key = int.from_bytes(_MASK * (size // 4 + 1), "big") >> (8 * (4 - size % 4))
    masked = int.from_bytes(data, "big") ^ key
    return length + _MASK + masked.to_bytes(size, "big")


def event_frame(kind: str, **fields: Any) -> bytes:
    """A client event."""
    return text_frame(json.dumps({"type": kind, **fields}))


def append_frame(audio: bytes) -> bytes:
    """An append."""
    return event_frame("input_audio_buffer.append", audio=base64.b64encode(audio).decode())


class RawClient:
    """One open session."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> RawClient:
        """Connects to a gateway on this machine.

        Raises:
            ConnectionError: the upgrade was refused.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        key = base64.b64encode(os.urandom(16)).decode()
        writer.write(
            f"GET /v1/realtime HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 101 " not in head.split(b"\r\n", 1)[0]:
            raise ConnectionError(head.decode(errors="replace"))
        return cls(reader, writer)

    def send(self, frame: bytes) -> None:
        """Writes a prepared frame."""
        self._writer.write(frame)

    async def drain(self) -> None:
        """Waits while the server takes nothing."""
        await self._writer.drain()

    async def receive(self) -> bytes:
        """The payload of the next text frame; pings are skipped, as the server allows 20 s.

        Raises:
            ConnectionError: the server closed.
        """
        while True:
            first, second = await self._reader.readexactly(2)
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack(">H", await self._reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack(">Q", await self._reader.readexactly(8))
            payload = await self._reader.readexactly(size)
            match first & 0x0F:
                case 0x1:
                    return payload
                case 0x8:
                    raise ConnectionError(f"the server closed: {payload!r}")
                case 0x9:
                    self._writer.write(bytes([0x8A, 0x80 | size]) + _MASK + _masked(payload))

    def close(self) -> None:
        """Leaves without a word."""
        self._writer.close()


def _masked(data: bytes) -> bytes:
    return bytes(byte ^ _MASK[place % 4] for place, byte in enumerate(data))
