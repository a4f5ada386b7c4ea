"""What one reader that takes nothing does to the gaps between the others' chunks."""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.rest.processes import (
    chat_body,
    free_port,
    gateway,
    http_request,
    module,
    quantile,
    wait_until_served,
)

STREAMS = 64
STEP_MS = 20
TEXT_BYTES = 4000
STALLED_TEXT_BYTES = 16_000
"""The stalled reader's stream brings more, so that its buffers are full soon."""
FILL_S = 20.0
POLL_S = 0.2
TOKENS = 110
SKIPPED = 10
"""First gaps of a stream, while the others open."""


async def stalled_reader_effect(rounds: int = 8) -> dict[str, Any]:
    """p99 of the others' gaps with a stalled reader over that without, and the same without twice.

    Rounds of the three kinds follow each other, so that a busy machine moves all alike; a kind's
    figure is the median of its rounds. The ratio of the two kinds without says how much of the
    first is noise. A stalled reader's round begins when the kernel takes no more for it: the
    gateway's own buffers fill then, and its request is ended for being behind.

    Returns:
        ``ratio`` and ``noise_ratio``, p99 gaps in ms of each round by kind, and the bytes that
        waited for the stalled reader.
    """
    backend, wide, port = free_port(), free_port(), free_port()
    pace = ("--step-ms", str(STEP_MS), "--text-bytes")
    found: dict[str, list[float]] = {"without": [], "stalled": [], "again": []}
    waiting: list[int] = []
    with (
        module("bench.instant_llm", str(backend), *pace, str(TEXT_BYTES)),
        module("bench.instant_llm", str(wide), *pace, str(STALLED_TEXT_BYTES), "--model", "wide"),
        gateway(port, [f"127.0.0.1:{backend}", f"127.0.0.1:{wide}"]),
    ):
        wait_until_served(port, models=2)
        await _gaps(port, STREAMS - 1, 20)
        for turn in range(rounds):
            kinds = list(found)
            for kind in kinds[turn % 3 :] + kinds[: turn % 3]:
                if kind == "stalled":
                    async with _stalled_reader(port) as backlog:
                        waiting.append(backlog)
                        gaps = await _gaps(port, STREAMS - 1, TOKENS)
                else:
                    gaps = await _gaps(port, STREAMS - 1, TOKENS)
                found[kind].append(quantile(gaps, 0.99) * 1000)
    medians = {kind: statistics.median(values) for kind, values in found.items()}
    return {
        "ratio": medians["stalled"] / medians["without"],
        "noise_ratio": medians["again"] / medians["without"],
        "p99_ms": found,
        "waiting_bytes": waiting,
    }


@asynccontextmanager
async def _stalled_reader(port: int):
    """A client that asks for a stream and reads nothing of it; gives what waits for it.

    Raises:
        TimeoutError: the kernel still takes more.
    """
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(http_request(chat_body(100_000, "wide")))
        number = client.getsockname()[1]
        waiting, before = 0, -1
        async with asyncio.timeout(FILL_S):
            while waiting == 0 or waiting > before:
                await asyncio.sleep(POLL_S)
                before, waiting = waiting, _send_queue(port, number)
        yield waiting


def _send_queue(port: int, peer: int) -> int:
    """Bytes that wait in the kernel on the way from a local port to its peer."""
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        local, remote = (int(field.rpartition(":")[2], 16) for field in fields[1:3])
        if (local, remote) == (port, peer):
            return int(fields[4].partition(":")[0], 16)
    return 0


async def _gaps(port: int, streams: int, tokens: int) -> list[float]:
    """Seconds between the chunks of each stream, of all streams together."""
    gaps: list[float] = []

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        writer.write(http_request(chat_body(tokens, "instant"), b"connection: close\r\n"))
        arrivals = []
        while data := await reader.read(1 << 20):
            if b"xxxx" in data:
                arrivals.append(time.perf_counter())
        writer.close()
        gaps.extend(
            b - a for a, b in zip(arrivals[SKIPPED:], arrivals[SKIPPED + 1 :], strict=False)
        )

    await asyncio.gather(*(one() for _ in range(streams)))
    return gaps
