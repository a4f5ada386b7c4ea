"""Gateways, backends and proxies as processes of their own, and a client of few instructions."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
from antiphon_cli.edge.render import ProxyPlan, Target, render

START_S = 120.0
_SLEEP_S = 0.1
_EVENT = b"data: "


@contextmanager
def running(*command: str, log: Path | None = None) -> Iterator[subprocess.Popen]:
    """A process for the block; its output is dropped, or kept in a file."""
    output = subprocess.DEVNULL if log is None else log.open("wb")
    child = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def module(*arguments: str):
    """``python -m`` of this interpreter, for the block."""
    return running(sys.executable, "-m", *arguments)


def gateway(port: int, targets: Sequence[str], *arguments: str):
    """A gateway before llm services that stand in for vocoders too, for the block."""
    return module(
        *("antiphon_gateway", "--port", str(port)),
        *("--llm-targets", json.dumps(targets), "--vocoder-targets", json.dumps(targets[:1])),
        *("--drain-notice-seconds", "0", *arguments),
    )


@contextmanager
def edge(folder: Path, gateway_port: int, llm_port: int) -> Iterator[int]:
    """Envoy before a gateway, from the product's template; gives the port of its edge listener."""
    admin, listener = free_port(), free_port()
    targets = [Target("127.0.0.1", port) for port in (admin, listener, gateway_port, llm_port)]
    plan = ProxyPlan(
        admin=targets[0],
        edge=targets[1],
        gateway=(targets[2],),
        llm=(targets[3],),
        vocoder=(targets[3],),
    )
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "envoy.yaml"
    file.write_text(render(plan), encoding="utf-8")
    binary = str(Path(sys.executable).with_name("envoy"))
    options = ("--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error")
    with running(binary, "-c", str(file), *options, log=folder / "envoy.log"):
        wait_until_served(listener)
        yield listener


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_served(
    port: int,
    seconds: float = START_S,
    models: int = 1,
    process: subprocess.Popen | None = None,
) -> None:
    """Waits until an OpenAI server lists so many models.

    Raises:
        RuntimeError: its process, if given, has ended.
        TimeoutError: it does not in time.
    """
    deadline = time.monotonic() + seconds
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as http:
        while time.monotonic() < deadline:
            if process is not None and process.poll() is not None:
                raise RuntimeError(f"{process.args} ended with status {process.returncode}")
            try:
                answer = http.get("/v1/models")
                if answer.status_code == 200 and len(answer.json()["data"]) >= models:
                    return
            except httpx.TransportError:
                pass
            time.sleep(_SLEEP_S)
    raise TimeoutError(f"nothing serves {models} models on port {port}")


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, its children left out."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def chat_body(tokens: int, model: str = "", **fields: object) -> bytes:
    """A streaming chat request for so many tokens."""
    messages = [{"role": "user", "content": "Hi"}]
    body = {"messages": messages, "stream": True, "max_tokens": tokens, **fields}
    return json.dumps(body | ({"model": model} if model else {})).encode()


def http_request(content: bytes, headers: bytes = b"") -> bytes:
    """The bytes of a chat request."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
    head += b"content-type: application/json\r\n" + headers
    return head + b"content-length: %d\r\n\r\n" % len(content) + content


async def read_stream(port: int, content: bytes) -> int:
    """One stream on a connection of its own; how many events it brought."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    writer.write(http_request(content, b"connection: close\r\n"))
    frames, tail = 0, b""
    while data := await reader.read(1 << 20):
        # The beginning of an event may be cut between two reads.
        joined = tail + data
        frames += joined.count(_EVENT)
        tail = joined[1 - len(_EVENT) :]
    writer.close()
    return frames


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]
