"""Abnormal resets at any byte: they free everything, and nobody else loses a sample."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import random
import socket
import struct

import pytest
from antiphon_gateway.realtime import endpoint
from realtime_bench import of
from realtime_gateway import FRAME, Client, RealtimeGateway, loud
from support.waiting import until

RESETS = 60
SOAK_RESETS = 1000
BURST = 12


def frame(payload: bytes) -> bytes:
    """A masked text frame."""
    mask = b"\x01\x02\x03\x04"
    size = len(payload)
    head = bytes([0x81, 0x80 | size]) if size < 126 else b"\x81\xfe" + struct.pack(">H", size)
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


def conversation(port: int) -> bytes:
    """All bytes of a client that speaks and is answered."""
    key = base64.b64encode(os.urandom(16)).decode()
    head = (
        f"GET /v1/realtime HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    speech = loud(0.3) + bytes(48_000)
    pieces = [head.encode()]
    for start in range(0, len(speech), 9600):
        audio = base64.b64encode(speech[start : start + 9600]).decode()
        event = {"type": "input_audio_buffer.append", "audio": audio}
        pieces.append(frame(json.dumps(event).encode()))
    pieces.append(frame(json.dumps({"type": "response.create"}).encode()))
    return b"".join(pieces)


async def reset_at(port: int, data: bytes, cut: int, pause: float) -> None:
    """Sends the bytes before the cut and resets the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data[:cut])
    await writer.drain()
    await asyncio.sleep(pause)
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    del reader


async def storm(gateway: RealtimeGateway, count: int, others: int = 0) -> None:
    """Resets at random bytes, a few at a time; after each burst all is free soon.

    Other sessions that listen keep their recogniser.
    """
    running = gateway.running

    def is_free() -> bool:
        kept = running.recognizer <= others and sum(endpoint._sessions.values()) == others
        return kept and not running.llm and not running.voice

    draw = random.Random(count)
    # For minutes: what ends it is the reset.
    gateway.script.words = tuple(f" word{i}" for i in range(20_000))
    gateway.script.word_delay = 0.01
    data = conversation(gateway.port)
    head = data.index(b"\r\n\r\n") + 4
    for _ in range(0, count, BURST):
        cuts = [draw.randrange(head // 2, len(data)) for _ in range(BURST - 2)]
        cuts += [len(data), len(data)]
        await asyncio.gather(
            *(reset_at(gateway.port, data, cut, draw.random() * 0.1) for cut in cuts)
        )
        await until(is_free)


def tasks() -> int:
    return len(asyncio.all_tasks())


async def check_storm(gateway: RealtimeGateway, count: int) -> None:
    await storm(gateway, BURST)
    await asyncio.sleep(0.1)
    before = tasks()
    await storm(gateway, count)
    await until(lambda: tasks() <= before)
    gc.collect()
    assert gateway.listener._server.server_state.connections == set()


async def test_resets_at_any_byte_leave_nothing(gateway: RealtimeGateway) -> None:
    await check_storm(gateway, RESETS)


@pytest.mark.soak
async def test_a_thousand_resets_leave_nothing(gateway: RealtimeGateway) -> None:
    await check_storm(gateway, SOAK_RESETS)


async def test_the_others_lose_no_sample(gateway: RealtimeGateway) -> None:
    text = "".join(gateway.script.words)
    async with gateway.session() as other:
        await other.update(audio={"input": {"turn_detection": None}})
        sent = 0

        async def talk() -> None:
            nonlocal sent
            for _ in range(100):
                await other.append(bytes(FRAME))
                sent += FRAME
                await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as group:
            group.create_task(talk())
            group.create_task(storm(gateway, 2 * BURST, others=1))
        gateway.script.words = (text,)
        await check_reply(other, text)
        heard = next(e for e in other.events if e["type"] == "input_audio_buffer.committed")
        await other.send("conversation.item.retrieve", item_id=heard["item_id"])
        item = (await other.until("conversation.item.retrieved"))[-1]["item"]
        audio = base64.b64decode(item["content"][0]["audio"])
        assert len(audio) == sent
        other.oracle.finish()


async def check_reply(client: Client, text: str) -> None:
    """The client commits and is answered to the last sample."""
    await client.send("input_audio_buffer.commit")
    await client.send("response.create")
    events = await client.until("response.done")
    assert events[-1]["response"]["status"] == "completed"
    audio = sum(
        len(base64.b64decode(event["delta"])) for event in of(events, "response.output_audio.delta")
    )
    assert audio == 2 * 1200 * len(text)
