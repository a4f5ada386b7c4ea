"""The listener's WebSocket: any cut of the bytes is the same messages, and errors close it."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from antiphon_gateway.listener import HttpListener
from antiphon_gateway.websocket import TAP

TEXT, BINARY, CONT, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10
BIG = "x" * 70_000


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Sends texts back, and what binary messages hold as text."""
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        text = message.get("text")
        data = text if text is not None else f"binary {message['bytes']!r}"
        await send({"type": "websocket.send", "text": data})


async def tapped_echo(scope: Any, receive: Any, send: Any) -> None:
    """As ``echo``, of what the tap leaves; what it takes is sent back with the next of these."""
    taken: list[bytes] = []

    def tap(payload: bytes) -> bool:
        if not payload.startswith(b"take"):
            return False
        taken.append(payload)
        return True

    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    scope["extensions"][TAP](tap)
    while (message := await receive())["type"] == "websocket.receive":
        for payload in taken:
            await send({"type": "websocket.send", "text": payload.decode()})
        taken.clear()
        await send({"type": "websocket.send", "text": message["text"]})
        if message["text"] == "no tap":
            scope["extensions"][TAP](None)


def frame(opcode: int, payload: bytes, *, final: bool = True, masked: bool = True) -> bytes:
    """A client's frame; the mask is not empty."""
    head = bytes([opcode | (0x80 if final else 0)])
    size, bit = len(payload), 0x80 if masked else 0
    if size < 126:
        head += bytes([bit | size])
    elif size < 1 << 16:
        head += bytes([bit | 126]) + struct.pack(">H", size)
    else:
        head += bytes([bit | 127]) + struct.pack(">Q", size)
    if not masked:
        return head + payload
    mask = b"\x01\xf2\x33\x84"
    repeated = mask * (size // 4 + 1)
    return head + mask + bytes(a ^ b for a, b in zip(payload, repeated, strict=False))


async def answers(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, bytes]]:
    """Opcode and payload of each frame of the server until it ends."""
    while head := await reader.read(2):
        head += await reader.readexactly(2 - len(head))
        size = head[1]
        if size >= 126:
            size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
        yield head[0] & 15, await reader.readexactly(size)


@asynccontextmanager
async def connected(
    app: Any = echo,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    listener = HttpListener(app, "127.0.0.1", 0, setting="port", grace_seconds=1.0)
    port = await listener.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        key = base64.b64encode(os.urandom(16)).decode()
        head = (
            f"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        writer.write(head.encode())
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        yield reader, writer
    finally:
        writer.transport.abort()
        await listener.stop()


MESSAGES = [
    frame(TEXT, b"one"),
    frame(PING, b"alive"),
    frame(TEXT, BIG.encode()),
    frame(TEXT, b""),
    frame(TEXT, b"two ", final=False) + frame(PING, b"?") + frame(CONT, b"halves"),
    frame(BINARY, b"\x00\x01"),
    frame(TEXT, "größer".encode() * 40),
    frame(TEXT, b"last"),
]
BYE = struct.pack(">H", 1000)
EXPECTED = ["one", BIG, "", "two halves", "binary b'\\x00\\x01'", "größer" * 40, "last"]


@pytest.mark.parametrize("seed", range(6))
async def test_any_cut_is_the_same_messages(seed: int) -> None:
    stream, dice = b"".join(MESSAGES), random.Random(seed)
    async with connected() as (reader, writer):
        start = 0
        while start < len(stream):
            # Cuts lie close together where the headers of short frames are.
            step = len(stream) if not seed else dice.choice((1, 2, 3, 7, 50, 20_000))
            writer.write(stream[start : start + step])
            start += step
            await asyncio.sleep(0)
        got = []
        async for item in answers(reader):
            got.append(item)
            if item == (TEXT, b"last"):
                writer.write(frame(CLOSE, BYE))
    assert [data.decode() for opcode, data in got if opcode == TEXT] == EXPECTED
    assert [data for opcode, data in got if opcode == PONG] == [b"alive", b"?"]
    assert got[-1] == (CLOSE, BYE)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(TEXT, b"\xff\xfe"), 1007),
        (frame(TEXT, b"not masked", masked=False), 1002),
        (frame(TEXT, b"a", final=False) + frame(TEXT, b"b"), 1002),
        (frame(CONT, b"of nothing"), 1002),
        (b"\xc1" + frame(TEXT, b"reserved bit")[1:], 1002),
        (b"\x81\xff" + struct.pack(">Q", 1 << 40), 1009),
    ],
)
async def test_a_wrong_frame_closes_the_socket_with_its_code(data: bytes, code: int) -> None:
    async with connected() as (reader, writer):
        writer.write(frame(TEXT, b"before") + data + frame(TEXT, b"after"))
        async with asyncio.timeout(10):
            got = [item async for item in answers(reader)]
    closes = [payload for opcode, payload in got if opcode == CLOSE]
    assert [int.from_bytes(payload[:2], "big") for payload in closes] == [code]
    assert (TEXT, b"after") not in got


async def test_a_flood_that_nobody_reads_waits_in_the_socket() -> None:
    sent = 2000
    async with connected() as (reader, writer):
        for number in range(sent):
            writer.write(frame(TEXT, str(number).encode() * 200))
        got = []
        async for opcode, data in answers(reader):
            got.append(data)
            if len(got) == sent:
                break
            assert opcode == TEXT
    assert [data.decode() for data in got] == [str(number) * 200 for number in range(sent)]


@pytest.mark.parametrize("cut", [1, 5, 1000])
async def test_a_tap_takes_what_it_wants_in_order(cut: int) -> None:
    texts = ["take 1", "a", "take 2", "take 3", "b", "c", "no tap", "take 4", "last"]
    stream = b"".join(frame(TEXT, text.encode()) for text in texts[:-1])
    stream += frame(TEXT, b"la", final=False) + frame(CONT, b"st")
    async with connected(tapped_echo) as (reader, writer):
        for start in range(0, len(stream), cut):
            writer.write(stream[start : start + cut])
            await asyncio.sleep(0)
        got = []
        async for _, data in answers(reader):
            got.append(data.decode())
            if got[-1] == "last":
                break
    assert got == texts
