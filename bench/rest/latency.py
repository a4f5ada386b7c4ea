"""Time that the gateway adds to the first byte while it is half busy, and that the edge adds."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from pathlib import Path

import grpc
from antiphon.llm.v1 import generate_pb2 as gen
from antiphon.llm.v1 import llm_service_pb2_grpc

from bench.rest.processes import (
    chat_body,
    cpu_seconds,
    edge,
    free_port,
    gateway,
    http_request,
    module,
    quantile,
    wait_until_served,
)

STEP_S = 0.02
SETTLE_S = 1.0
HALF = 0.5
STREAMS_A_CLIENT = 32
MOST_STREAMS = 160
"""8,000 chunks a second: all that the gateway is asked for."""
PROBE_MODEL = "instant"
LOAD_MODEL = "paced"
TEXT = b"xxxxx"


async def added_first_byte(requests: int) -> dict[str, float]:
    """First text through the gateway against the first delta of a direct call, in turns, in ms.

    Beside the probes run as many paced streams as keep the gateway half busy. They come from a
    backend of their own, so that the probes wait for no step.
    """
    load, instant, port = free_port(), free_port(), free_port()
    targets = [f"127.0.0.1:{instant}", f"127.0.0.1:{load}"]
    pace = ("--step-ms", str(STEP_S * 1000), "--model", LOAD_MODEL)
    with (
        module("bench.instant_llm", str(load), *pace),
        module("bench.instant_llm", str(instant), "--model", PROBE_MODEL),
        gateway(port, targets) as process,
    ):
        wait_until_served(port, models=2)
        await _probes(port, targets[0], 20)
        idle = await _probes(port, targets[0], requests)
        async with _half_load(port, process.pid) as busy:
            half = await _probes(port, targets[0], requests)
            used = busy()
    return {f"idle_{name}": value for name, value in idle.items()} | half | used


@contextlib.asynccontextmanager
async def _half_load(port: int, pid: int):
    """Opens streams until the gateway uses half a core, for the block; gives a reading of it.

    They are read by processes of their own, so that the probes share no loop with them.
    """

    async def share() -> float:
        before, started = cpu_seconds(pid), time.perf_counter()
        await asyncio.sleep(SETTLE_S)
        return (cpu_seconds(pid) - before) / (time.perf_counter() - started)

    with contextlib.ExitStack() as stack:
        streams = 0
        while streams < MOST_STREAMS and await share() < HALF:
            command = ("bench.rest.background", str(port), LOAD_MODEL, str(STREAMS_A_CLIENT))
            stack.enter_context(module(*command))
            streams += STREAMS_A_CLIENT
            await asyncio.sleep(SETTLE_S)
        before, started = cpu_seconds(pid), time.perf_counter()

        def reading() -> dict[str, float]:
            elapsed = time.perf_counter() - started
            return {"streams": streams, "core_share": (cpu_seconds(pid) - before) / elapsed}

        yield reading


async def _probes(port: int, target: str, requests: int) -> dict[str, float]:
    through, direct = [], []
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with grpc.aio.insecure_channel(target) as channel:
        stub = llm_service_pb2_grpc.LlmServiceStub(channel)
        request = gen.GenerateRequest(text="Hi", stop=gen.StopParams(max_tokens=1))
        for _ in range(requests):
            started = time.perf_counter()
            async for response in stub.Generate(request):
                if response.HasField("delta"):
                    direct.append((time.perf_counter() - started) * 1000)
            through.append(await first_text(reader, writer, chat_body(1, PROBE_MODEL)))
    writer.close()
    return {
        "direct_p50": statistics.median(direct),
        "direct_p99": quantile(direct, 0.99),
        "through_p50": statistics.median(through),
        "through_p99": quantile(through, 0.99),
        "added_p50": statistics.median(through) - statistics.median(direct),
        "added_p99": quantile(through, 0.99) - quantile(direct, 0.99),
    }


async def first_text(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, content: bytes
) -> float:
    """Milliseconds from a request on an open connection to its first text; reads it to the end."""
    started = time.perf_counter()
    writer.write(http_request(content))
    await reader.readuntil(TEXT)
    elapsed = (time.perf_counter() - started) * 1000
    await reader.readuntil(b"\r\n0\r\n\r\n")
    return elapsed


async def edge_hop(folder: Path, requests: int) -> dict[str, float]:
    """A small GET through the edge and past it, in turns, in ms."""
    backend, port = free_port(), free_port()
    with (
        module("bench.instant_llm", str(backend)),
        gateway(port, [f"127.0.0.1:{backend}"]),
    ):
        wait_until_served(port)
        with edge(folder, port, backend) as listener:
            times: dict[int, list[float]] = {port: [], listener: []}
            connections = {to: await asyncio.open_connection("127.0.0.1", to) for to in times}
            for _ in range(requests):
                for to, (reader, writer) in connections.items():
                    started = time.perf_counter()
                    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                    await reader.readuntil(b"}")
                    times[to].append((time.perf_counter() - started) * 1000)
            for _, writer in connections.values():
                writer.close()
    past, through = times[port], times[listener]
    return {
        "past_p50": statistics.median(past),
        "past_p99": quantile(past, 0.99),
        "through_p50": statistics.median(through),
        "through_p99": quantile(through, 0.99),
        "added_p50": statistics.median(through) - statistics.median(past),
        "added_p99": quantile(through, 0.99) - quantile(past, 0.99),
    }
