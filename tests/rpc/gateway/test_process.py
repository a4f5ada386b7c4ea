"""The gateway as a process: early bind, status service, drain on SIGTERM, refusal to start."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import httpx
from antiphon.admin.v1 import node_pb2, node_pb2_grpc
from fake_backends import FakeBackends, LlmScript
from gateway_bench import events_of
from support.suite import free_port_block
from support.waiting import until


async def launch(*flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "antiphon_gateway", *flags, stderr=asyncio.subprocess.PIPE
    )


@asynccontextmanager
async def gateway_process(
    target: str, **flags: object
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    port = free_port_block(2)
    targets = json.dumps([target])
    arguments = ["--port", str(port), "--node-bind", f"127.0.0.1:{port + 1}"]
    arguments += ["--llm-targets", targets, "--vocoder-targets", targets]
    for name, value in flags.items():
        arguments += ["--" + name.replace("_", "-"), str(value)]
    process = await launch(*arguments)
    log = asyncio.create_task(process.stderr.read())
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
            deadline = time.monotonic() + 60
            while True:
                try:
                    await http.get("/health")
                    break
                except httpx.ConnectError:
                    assert process.returncode is None, (await log).decode()
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.05)
            yield process, http
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await log


async def test_sigterm_drains_and_exits_cleanly() -> None:
    fakes = FakeBackends()
    await fakes.start()
    async with gateway_process(fakes.target, drain_notice_seconds=0.2) as (process, http):
        while (await http.get("/health/ready")).status_code != 200:
            await asyncio.sleep(0.05)
        node = (http.base_url.port or 0) + 1
        async with grpc.aio.insecure_channel(f"127.0.0.1:{node}") as channel:
            stub = node_pb2_grpc.NodeAdminServiceStub(channel)
            info = await stub.GetServerInfo(node_pb2.GetServerInfoRequest())
            assert info.service == "gateway"
            metrics = await stub.GetMetrics(node_pb2.GetMetricsRequest())
            assert b"antiphon_http_requests_total" in metrics.text
        fakes.llm.script = LlmScript(delay=0.1)
        body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
        running = asyncio.create_task(http.post("/v1/chat/completions", json=body))
        await until(lambda: fakes.llm.calls.running == 1)
        process.send_signal(signal.SIGTERM)
        assert events_of((await running).text)[-1] == "[DONE]"
        assert await asyncio.wait_for(process.wait(), 20) == 0
    await fakes.stop()


async def test_a_port_in_use_and_a_wrong_key_stop_the_start() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = await launch("--port", str(port))
        _, text = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 71
        assert f"port {port} on 127.0.0.1 is already in use" in text.decode()
    process = await launch("--prot", "1")
    _, text = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 71
    assert "prot" in text.decode()
