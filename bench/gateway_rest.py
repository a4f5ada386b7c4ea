"""What the gateway's REST side costs, with a backend that answers at once.

Prints BAR lines for: time that the gateway adds to the first byte of a stream, streamed chunks a
second of one gateway core (from its CPU time, so that a busy machine matters little), and the
import time. The backend, the gateway and this client are three processes.

Then the CPU time a token of gateway and llm front together, with one GenerateMany stream between
them and with one Generate call a request: the real front over an engine that only keeps time.

    python -m bench.gateway_rest [--streams 32] [--tokens 500] [--requests 200]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import socket
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager

import grpc
import httpx
import psutil
from antiphon.llm.v1 import generate_pb2 as gen
from antiphon.llm.v1 import llm_service_pb2_grpc

from bench.report import Report


@contextmanager
def process(*arguments: str):
    """A child of this interpreter for the block."""
    child = subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield child
    finally:
        child.terminate()
        child.wait()


def body(tokens: int) -> bytes:
    """A chat request for so many tokens."""
    messages = [{"role": "user", "content": "Hi"}]
    return json.dumps({"messages": messages, "stream": True, "max_tokens": tokens}).encode()


async def added_first_byte(port: int, target: str, requests: int) -> dict[str, float]:
    """First text through the gateway minus first delta of a direct call, in ms, interleaved."""
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
            started = time.perf_counter()
            writer.write(http_request(body(1)))
            await reader.readuntil(b"xxxxx")
            through.append((time.perf_counter() - started) * 1000)
            await reader.readuntil(b"0\r\n\r\n")
    writer.close()
    return {
        "direct_p50": statistics.median(direct),
        "gateway_p50": statistics.median(through),
        "added_p50": statistics.median(through) - statistics.median(direct),
        "added_p99": quantile(through, 0.99) - quantile(direct, 0.99),
    }


def http_request(content: bytes, headers: bytes = b"") -> bytes:
    """The bytes of a chat request."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + headers
    return head + b"content-length: %d\r\n\r\n" % len(content) + content


def quantile(values: list[float], share: float) -> float:
    """The value below which a share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def stream_cost(
    port: int, gateway: psutil.Process, streams: int, tokens: int
) -> dict[str, float]:
    """CPU time of the gateway a token, and how many tokens shared a frame, at full speed."""
    frames = 0

    async def one() -> None:
        nonlocal frames
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        writer.write(http_request(body(tokens), b"connection: close\r\n"))
        while data := await reader.read(1 << 20):
            frames += data.count(b"data: ")
        writer.close()

    before = gateway.cpu_times()
    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(streams)))
    elapsed = time.perf_counter() - started
    after = gateway.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    return {
        "tokens": streams * tokens,
        "frames": frames,
        "cpu_us_per_token": cpu / (streams * tokens) * 1e6,
        "cpu_us_per_frame": cpu / frames * 1e6,
        "frames_per_core_second": frames / cpu,
        "tokens_per_core_second": streams * tokens / cpu,
        "wall_tokens_per_second": streams * tokens / elapsed,
    }


async def stalled_reader_delay(streams: int = 64, tokens: int = 60) -> dict[str, float]:
    """What one reader that takes nothing does to the gaps between the others' chunks.

    The streams bring 4 KB a step of 20 ms, so that the stalled reader's buffers are full soon.

    Returns:
        The p99 of the gaps in ms, with and without it; the best of five interleaved runs each.
    """
    backend, port = free_port(), free_port()
    found: dict[str, list[float]] = {"with_stalled": [], "without": []}
    with (
        process("bench.instant_llm", str(backend), "--step-ms", "20", "--text-bytes", "4000"),
        gateway_process(port, f"127.0.0.1:{backend}"),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as http,
    ):
        wait_until_served(http)
        await chunk_gaps(port, streams, 10)
        for name in ("without", "with_stalled") * 5:
            if name == "without":
                gaps = await chunk_gaps(port, streams, tokens)
            else:
                with stalled_reader(port, 100 * tokens):
                    gaps = await chunk_gaps(port, streams - 1, tokens)
            found[name].append(quantile(gaps, 0.99) * 1000)
    return {name: min(values) for name, values in found.items()}


@contextmanager
def stalled_reader(port: int, tokens: int):
    """A client that asks for a stream and reads nothing of it, for the block."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(http_request(body(tokens)))
        yield


async def chunk_gaps(port: int, streams: int, tokens: int) -> list[float]:
    """Seconds between the arrivals of each stream, of all streams together."""
    gaps: list[float] = []

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        writer.write(http_request(body(tokens), b"connection: close\r\n"))
        last = 0.0
        while data := await reader.read(1 << 20):
            now = time.perf_counter()
            if last and b"xxxx" in data:
                gaps.append(now - last)
            last = now
        writer.close()

    await asyncio.gather(*(one() for _ in range(streams)))
    return gaps


async def idle_stream_bytes(streams: int = 2000) -> dict[str, float]:
    """Resident bytes of the gateway a stream, with many open that wait for their next token."""
    backend, port = free_port(), free_port()
    with (
        process("bench.instant_llm", str(backend), "--step-ms", "1000"),
        gateway_process(port, f"127.0.0.1:{backend}") as gateway,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as http,
    ):
        wait_until_served(http)
        await chunk_gaps(port, 20, 1)
        resident = psutil.Process(gateway.pid).memory_info
        before = resident().rss
        open_streams = []
        for _ in range(0, streams, 100):
            open_streams += await asyncio.gather(*(first_text(port) for _ in range(100)))
        grown = resident().rss - before
        for writer in open_streams:
            writer.close()
    return {"streams": len(open_streams), "bytes_per_stream": grown / len(open_streams)}


async def first_text(port: int) -> asyncio.StreamWriter:
    """Opens a long stream and waits for its first token."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(http_request(body(1_000_000)))
    await reader.readuntil(b"xxxxx")
    return writer


def import_cpu() -> float:
    """CPU seconds of importing the gateway, the interpreter's own start left out; best of 3."""

    def cpu(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(cpu("import antiphon_gateway.__main__") for _ in range(3)) - cpu("pass")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_served(http: httpx.Client) -> None:
    """Waits until the gateway lists the model.

    Raises:
        TimeoutError: it does not in a minute.
    """
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if http.get("/v1/models").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise TimeoutError("the gateway does not serve the model")


async def transport_cost(streams: int, tokens: int, rounds: int = 2) -> dict[str, dict[str, float]]:
    """CPU microseconds a token of gateway and front by transport, runs interleaved."""
    front_port = free_port()
    target = f"127.0.0.1:{front_port}"
    costs: dict[str, list[dict[str, float]]] = {"many": [], "generate": []}
    with process("bench.paced_llm", str(front_port)) as front:
        for name in ("many", "generate") * rounds:
            port = free_port()
            egress = ("--egress-target", target) if name == "generate" else ()
            with (
                gateway_process(port, target, *egress) as gateway,
                httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as http,
            ):
                wait_until_served(http)
                await stream_cost(port, psutil.Process(gateway.pid), streams, 5)
                before = cpu_seconds(front.pid)
                cost = await stream_cost(port, psutil.Process(gateway.pid), streams, tokens)
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


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, its children left out."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def gateway_process(port: int, target: str, *arguments: str):
    """A gateway before one backend, for the block."""
    targets = json.dumps([target])
    return process(
        "antiphon_gateway",
        *("--port", str(port)),
        *("--llm-targets", targets, "--vocoder-targets", targets),
        *("--drain-notice-seconds", "0"),
        *arguments,
    )


async def measure(arguments: argparse.Namespace) -> int:
    """Runs everything and reports."""
    backend_port, gateway_port = free_port(), free_port()
    target = f"127.0.0.1:{backend_port}"
    report = Report("gateway")
    with (
        process("bench.instant_llm", str(backend_port)),
        gateway_process(gateway_port, target) as gateway,
        httpx.Client(base_url=f"http://127.0.0.1:{gateway_port}", timeout=10) as http,
    ):
        wait_until_served(http)
        await added_first_byte(gateway_port, target, 20)
        first = await added_first_byte(gateway_port, target, arguments.requests)
        report.add("added_first_byte_p50", first["added_p50"], first)
        cost = await stream_cost(
            gateway_port, psutil.Process(gateway.pid), arguments.streams, arguments.tokens
        )
        report.add("stream_chunks_per_core_second", cost["frames_per_core_second"], cost)
        report.add("stream_cpu_per_chunk", cost["cpu_us_per_frame"], cost)
    costs = await transport_cost(arguments.transport_streams, arguments.transport_tokens)
    for name, cost in costs.items():
        print(f"{name}: " + ", ".join(f"{key} {value:.3g}" for key, value in cost.items()))
    many, one = costs["many"]["total_us"], costs["generate"]["total_us"]
    report.add("multiplexed_cpu_per_token", many, costs)
    report.add("multiplexed_cpu_saving", one / many, costs)
    idle = await idle_stream_bytes(arguments.idle_streams)
    report.add("idle_stream_memory", idle["bytes_per_stream"] / 1024, idle)
    delay = await stalled_reader_delay()
    report.add("stalled_reader_p99", delay["with_stalled"] / delay["without"], delay)
    report.add("import_cpu", import_cpu())
    return report.finish()


def main() -> int:
    """Entry point."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    parser = argparse.ArgumentParser(description="Cost of the gateway's REST side")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--transport-streams", type=int, default=64)
    parser.add_argument("--transport-tokens", type=int, default=120)
    parser.add_argument("--idle-streams", type=int, default=2000)
    parser.add_argument("--requests", type=int, default=200)
    arguments = parser.parse_args()
    return asyncio.run(measure(arguments))


if __name__ == "__main__":
    sys.exit(main())
