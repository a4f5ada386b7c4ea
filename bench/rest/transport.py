"""One GenerateMany stream against one Generate call a request, in CPU time a token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import grpc
from antiphon.llm.v1 import generate_pb2 as gen
from antiphon.llm.v1 import llm_service_pb2_grpc
from antiphon_core.rpc.channel import open_channel

from bench.rest.processes import cpu_seconds, free_port, gateway, module, wait_until_served
from bench.rest.streams import drained


async def whole_path(streams: int, tokens: int, rounds: int = 2) -> dict[str, dict[str, float]]:
    """CPU microseconds a token of gateway and llm front by transport, runs in turns.

    The front is the real one over an engine that only keeps time; HTTP, JSON, detokenisation and
    all else are in the figures, equal for both.
    """
    front_port = free_port()
    target = f"127.0.0.1:{front_port}"
    costs: dict[str, list[dict[str, float]]] = {"many": [], "generate": []}
    with module("bench.paced_llm", str(front_port)) as front:
        for name in ("many", "generate") * rounds:
            port = free_port()
            egress = ("--egress-target", target) if name == "generate" else ()
            with gateway(port, [target], *egress) as process:
                wait_until_served(port)
                await drained(port, process.pid, streams, 5)
                before = cpu_seconds(front.pid)
                cost = await drained(port, process.pid, streams, tokens)
                served = cpu_seconds(front.pid) - before
            costs[name].append(
                {
                    "gateway_us": cost["cpu_us_per_token"],
                    "front_us": served / cost["tokens"] * 1e6,
                    "total_us": cost["cpu_us_per_token"] + served / cost["tokens"] * 1e6,
                    "frames_per_token": cost["frames"] / cost["tokens"],
                }
            )
    return {name: min(runs, key=lambda run: run["total_us"]) for name, runs in costs.items()}


async def grpc_alone(streams: int, tokens: int, rounds: int = 3) -> dict[str, dict[str, float]]:
    """CPU microseconds a token of the two ends of the calls and nothing else, runs in turns.

    The server sends ready messages, this process reads text and count of each token.
    """
    port = free_port()
    kinds: dict[str, Callable[[object, int, int], Awaitable[int]]] = {
        "many": _many,
        "generate": _generate,
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    with module("bench.instant_llm", str(port)) as server:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            await channel.channel_ready()
            stub = llm_service_pb2_grpc.LlmServiceStub(channel)
            for name in tuple(kinds) * (rounds + 1):
                before, started = cpu_seconds(server.pid), time.process_time()
                read = await kinds[name](stub, streams, tokens)
                client = (time.process_time() - started) / read * 1e6
                served = (cpu_seconds(server.pid) - before) / read * 1e6
                cost = {"server_us": served, "client_us": client, "total_us": served + client}
                found[name].append(cost)
    # The first of each warms up.
    return {name: min(runs[1:], key=lambda run: run["total_us"]) for name, runs in found.items()}


async def _generate(stub, streams: int, tokens: int) -> int:
    async def one() -> int:
        read = 0
        call = stub.Generate(gen.GenerateRequest(stop=gen.StopParams(max_tokens=tokens)))
        while (response := await call.read()) is not grpc.aio.EOF:
            if response.WhichOneof("event") == "delta":
                read += response.delta.token_count if response.delta.text else 0
        return read

    return sum(await asyncio.gather(*(one() for _ in range(streams))))


async def _many(stub, streams: int, tokens: int) -> int:
    call = stub.GenerateMany()
    for number in range(streams):
        request = gen.GenerateRequest(stop=gen.StopParams(max_tokens=tokens))
        start = gen.StartGenerate(stream_id=str(number), request=request)
        await call.write(gen.GenerateManyRequest(start=start))
    read = 0
    while read < streams * tokens:
        response = await call.read()
        for text, count in zip(response.texts, response.token_counts, strict=True):
            read += count if text else 0
    call.cancel()
    return read
