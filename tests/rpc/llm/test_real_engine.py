"""The service as it ships: its own process, the real engine, the default model."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from antiphon.admin.v1 import node_pb2
from antiphon.admin.v1.node_pb2_grpc import NodeAdminServiceStub
from antiphon.llm.v1 import generate_pb2, llm_service_pb2
from antiphon.llm.v1.llm_service_pb2_grpc import LlmServiceStub
from antiphon_core.errors import Unavailable
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.streams import messages, open_stream, read_all, result
from llm_bench import Collected, chat, limit

BOOT_SECONDS = 120.0

GREEDY = generate_pb2.SamplingParams(temperature=0)


class RunningService:
    """``python -m antiphon_llm`` with its log."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.log = log

    async def find(self, pattern: str, seconds: float = BOOT_SECONDS) -> str:
        """The last match in the log, waited for."""
        for _ in range(int(seconds / 0.05)):
            found = re.findall(pattern, self.log.read_text())
            if found:
                return found[-1]
            if self.process.returncode is not None:
                break
            await asyncio.sleep(0.05)
        raise TimeoutError(f"no {pattern} in the log: {self.log.read_text()[-2000:]}")

    async def wait_ready(self, stub: Any) -> None:
        """Until calls are admitted."""
        for _ in range(int(BOOT_SECONDS / 0.1)):
            try:
                await result(stub.Tokenize(llm_service_pb2.TokenizeRequest(text="x")))
                return
            except Unavailable:
                await asyncio.sleep(0.1)
        raise TimeoutError(self.log.read_text()[-2000:])


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningService]:
    log = tmp_path / "llm.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "antiphon_llm",
            *("--bind", "127.0.0.1:0", "--context-limit", "1024", "--cache-dir", str(tmp_path)),
            stderr=output,
        )
    yield RunningService(process, log)
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 30) == 0


@pytest.mark.real
async def test_chat_streams_and_survives_the_death_of_the_engine(running: RunningService) -> None:
    port = await running.find(r'"port":(\d+)')
    channel = open_channel(f"127.0.0.1:{port}")
    stub: Any = LlmServiceStub(channel)
    await running.wait_ready(stub)
    question = chat("What is the capital of France?", sampling=GREEDY, stop=limit(24))
    found = Collected(await read_all(stub.Generate(question)))
    assert "Paris" in found.text()
    assert len(found.deltas) > 3
    assert found.finished[0].reason == generate_pb2.FINISH_REASON_STOP

    long = chat(
        "Tell me a long story about a river.",
        sampling=GREEDY,
        stop=limit(500, ignore_eos=True),
    )
    errors = []

    async def stream(started: asyncio.Event) -> None:
        try:
            async with open_stream(stub.Generate(long)) as call:
                async for message in messages(call):
                    if message.HasField("delta"):
                        started.set()
        except Unavailable as error:
            errors.append(error.reason)

    events = [asyncio.Event() for _ in range(4)]
    tasks = [asyncio.create_task(stream(event)) for event in events]
    await asyncio.wait_for(asyncio.gather(*(event.wait() for event in events)), 60)
    pid = int(await running.find(r'"worker":"llm-engine","pid":(\d+)'))
    os.kill(pid, signal.SIGKILL)
    await asyncio.wait_for(asyncio.gather(*tasks), 2.0)
    assert errors == ["WORKER_DIED"] * 4
    await running.wait_ready(stub)
    again = Collected(await read_all(stub.Generate(question)))
    assert again.text() == found.text()
    node: Any = NodeAdminServiceStub(channel)
    snapshot = await result(node.GetSnapshot(node_pb2.GetSnapshotRequest()))
    assert snapshot.status.worker_restarts == 1
    assert snapshot.status.kv_entries_used == 0
    await channel.close()
