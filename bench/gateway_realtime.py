"""The gateway's realtime side alone, before instant backends, on one core.

``python -m bench.gateway_realtime --connections 200 --seconds 20``. Every connection appends
20 ms of audio each 20 ms. One append a second carries a marker, at which the recogniser reports
a turn's begin or end; its way there and back, less the recogniser's own when it is asked
directly, is what the gateway adds. CPU time of the gateway's process tells the cost of an append
on a machine that is not quiet.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import time
from dataclasses import dataclass, field

import psutil
from antiphon.vocoder.v1 import recognition_service_pb2 as rec
from antiphon.vocoder.v1 import recognition_service_pb2_grpc
from antiphon_core.rpc.channel import open_channel

from bench.realtime_backends import MARKER
from bench.rest.processes import (
    cpu_seconds,
    free_port,
    gateway,
    module,
    quantile,
    wait_until_served,
)

FRAME_BYTES = 960
FRAME_SECONDS = 0.02
MARK_EVERY = 50
HEADER_BYTES = 4
TURN_EVENTS = (b'"input_audio_buffer.speech_started"', b'"input_audio_buffer.speech_stopped"')


@dataclass
class Load:
    """What all connections saw."""

    latencies: list[float] = field(default_factory=list)
    """Seconds from a marked append to its turn event."""
    appends: int = 0
    lateness: list[float] = field(default_factory=list)
    """Seconds by which the client itself was late to append."""


def text_frame(event: dict[str, object]) -> bytes:
    """A client's text frame with an empty mask: the payload travels as it is."""
    payload = json.dumps(event).encode()
    size = len(payload)
    head = bytes([0x81, 0x80 | size]) if size < 126 else b"\x81\xfe" + size.to_bytes(2, "big")
    return head + bytes(HEADER_BYTES) + payload


def append_frame(audio: bytes) -> bytes:
    """An append event as a frame."""
    encoded = base64.b64encode(audio).decode()
    return text_frame({"type": "input_audio_buffer.append", "audio": encoded})


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An open session that commits turns and does not answer them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    key = base64.b64encode(os.urandom(16)).decode()
    head = (
        f"GET /v1/realtime HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    writer.write(head.encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    if b" 101 " not in answer:
        raise ConnectionError(answer.decode(errors="replace")[:200])
    detection = {"type": "server_vad", "create_response": False}
    audio = {"input": {"turn_detection": detection}}
    writer.write(
        text_frame({"type": "session.update", "session": {"type": "realtime", "audio": audio}})
    )
    await reader.readuntil(b'"session.updated"')
    return reader, writer


async def converse(
    opened: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    offset: float,
    seconds: float,
    load: Load,
) -> None:
    """One connection: appends on time, and times its turn events."""
    reader, writer = opened
    plain, marked = append_frame(bytes(FRAME_BYTES)), append_frame(MARKER.ljust(FRAME_BYTES, b"\0"))
    sent: list[float] = []
    listener = asyncio.create_task(listen(reader, sent, load))
    begin = time.perf_counter() + offset
    for number in range(int(seconds / FRAME_SECONDS)):
        due = begin + number * FRAME_SECONDS
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        now = time.perf_counter()
        load.lateness.append(now - due)
        if number % MARK_EVERY == MARK_EVERY // 2:
            sent.append(now)
            writer.write(marked)
        else:
            writer.write(plain)
        load.appends += 1
    await asyncio.sleep(1.0)
    listener.cancel()
    writer.transport.abort()


async def listen(reader: asyncio.StreamReader, sent: list[float], load: Load) -> None:
    """Times the turn events of one connection; they come in the order of the marks."""
    seen, tail = 0, b""
    longest = max(map(len, TURN_EVENTS))
    while data := await reader.read(1 << 16):
        joined = tail + data
        count = sum(joined.count(event) for event in TURN_EVENTS)
        # What ended in the tail has been counted.
        count -= sum(tail.count(event) for event in TURN_EVENTS)
        for _ in range(count):
            load.latencies.append(time.perf_counter() - sent[seen])
            seen += 1
        tail = joined[1 - longest :]


async def direct(port: int, rounds: int = 100) -> list[float]:
    """Seconds of the recogniser's own way there and back."""
    channel = open_channel(f"127.0.0.1:{port}")
    stub = recognition_service_pb2_grpc.RecognitionServiceStub(channel)
    call = stub.StreamingRecognize()
    request = rec.StreamingRecognizeRequest
    await call.write(request(config=rec.RecognitionConfig()))
    await call.read()
    times = []
    for number in range(rounds):
        began = time.perf_counter()
        await call.write(request(audio=MARKER))
        await call.read()
        times.append(time.perf_counter() - began)
        if number % 2:
            await call.read()
        await asyncio.sleep(0.005)
    call.cancel()
    await channel.close()
    return times


async def measure(connections: int, seconds: float) -> dict[str, float]:
    """Runs the load once; times are in ms."""
    backend, port = free_port(), free_port()
    with (
        module("bench.realtime_backends", str(backend)),
        gateway(port, [f"127.0.0.1:{backend}"]) as child,
    ):
        wait_until_served(port)
        cores = sorted(psutil.Process(child.pid).cpu_affinity() or [0])
        psutil.Process(child.pid).cpu_affinity(cores[:1])
        own = await direct(backend)
        load = Load()
        sockets = [await connect(port) for _ in range(connections)]
        # The handshakes are not what an append costs.
        before = cpu_seconds(child.pid)
        spread = FRAME_SECONDS / connections
        await asyncio.gather(
            *(converse(opened, 1.0 + i * spread, seconds, load) for i, opened in enumerate(sockets))
        )
        spent = cpu_seconds(child.pid) - before
    added = [latency - quantile(own, 0.5) for latency in load.latencies]
    return {
        "connections": connections,
        "marks": len(added),
        "added_p50_ms": quantile(added, 0.5) * 1e3,
        "added_p99_ms": quantile(added, 0.99) * 1e3,
        "client_late_p99_ms": quantile(load.lateness, 0.99) * 1e3,
        "direct_p50_ms": quantile(own, 0.5) * 1e3,
        "cpu_us_per_append": spent / load.appends * 1e6,
        "core_share": spent / seconds,
    }


def main() -> None:
    """Prints one line a figure."""
    parser = argparse.ArgumentParser(description="the realtime side of the gateway alone")
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    for name, value in asyncio.run(measure(options.connections, options.seconds)).items():
        print(f"{name} {value:.3f}")


if __name__ == "__main__":
    main()
