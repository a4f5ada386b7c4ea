"""What a streamed chunk costs the gateway, and what a stream that waits holds."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import psutil

from bench.rest.processes import (
    chat_body,
    cpu_seconds,
    free_port,
    gateway,
    http_request,
    module,
    read_stream,
    wait_until_served,
)

TEXT = b"xxxxx"


async def stream_cost(streams: int, tokens: int, rounds: int = 3) -> dict[str, float]:
    """Chunks a second of gateway CPU, and CPU a chunk, at full speed; the best of the rounds.

    The chunks are counted as they arrive: where the gateway sends two tokens in one, it is one.
    """
    backend, port = free_port(), free_port()
    with (
        module("bench.instant_llm", str(backend)),
        gateway(port, [f"127.0.0.1:{backend}"]) as process,
    ):
        wait_until_served(port)
        await drained(port, process.pid, 8, 50)
        found = [await drained(port, process.pid, streams, tokens) for _ in range(rounds)]
    return min(found, key=lambda cost: cost["cpu_us_per_frame"])


async def drained(
    port: int, pid: int, streams: int, tokens: int, fields: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """So many streams at once, read to their end: their cost in the process that serves them."""
    content = chat_body(tokens, **(fields or {}))
    before, started = cpu_seconds(pid), time.perf_counter()
    counts = await asyncio.gather(*(read_stream(port, content) for _ in range(streams)))
    elapsed, cpu = time.perf_counter() - started, cpu_seconds(pid) - before
    frames = sum(counts)
    return {
        "tokens": streams * tokens,
        "frames": frames,
        "cpu_us_per_token": cpu / (streams * tokens) * 1e6,
        "cpu_us_per_frame": cpu / frames * 1e6,
        "frames_per_core_second": frames / cpu,
        "wall_frames_per_second": frames / elapsed,
    }


async def idle_stream_bytes(streams: int = 2000) -> dict[str, float]:
    """Resident bytes of the gateway a stream, with many open that wait for their next token."""
    backend, port = free_port(), free_port()
    with (
        module("bench.instant_llm", str(backend), "--step-ms", "1000"),
        gateway(port, [f"127.0.0.1:{backend}"]) as process,
    ):
        wait_until_served(port)
        await asyncio.gather(*(read_stream(port, chat_body(1)) for _ in range(20)))
        resident = psutil.Process(process.pid).memory_info
        before = resident().rss
        open_streams: list[asyncio.StreamWriter] = []
        for _ in range(0, streams, 400):
            open_streams += await asyncio.gather(*(_first_text(port) for _ in range(400)))
        grown = resident().rss - before
        for writer in open_streams:
            writer.close()
    return {"streams": len(open_streams), "bytes_per_stream": grown / len(open_streams)}


async def _first_text(port: int) -> asyncio.StreamWriter:
    """Opens a long stream and waits for its first token."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(http_request(chat_body(1_000_000)))
    await reader.readuntil(TEXT)
    return writer


def import_cpu() -> float:
    """CPU seconds of importing the gateway, the interpreter's start and end left out; best of 3."""

    def cpu(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code + "; import os; os._exit(0)"], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    load = "from antiphon_gateway.__main__ import load; load()"
    return min(cpu(load) for _ in range(3)) - cpu("pass")
