"""The service as it ships: its own process, the real engine, the default model."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from antiphon.llm.v1 import generate_pb2, llm_service_pb2
from antiphon_core.errors import Unavailable
from antiphon_core.rpc.streams import messages, open_stream, read_all, result
from llm_bench import Collected, chat, limit

from bench.service import BOOT_S, LlmService, llm_service

GREEDY = generate_pb2.SamplingParams(temperature=0)


async def serving(stub: Any) -> bool:
    """Whether calls are admitted."""
    try:
        await result(stub.Tokenize(llm_service_pb2.TokenizeRequest(text="x")))
    except Unavailable:
        return False
    return True


@pytest.mark.real
async def test_chat_streams_and_survives_the_death_of_the_engine(tmp_path: Path) -> None:
    flags = ("--context-limit", "1024", "--cache-dir", str(tmp_path))
    async with llm_service(tmp_path, *flags) as service:
        await chat_kill_chat(service)
    assert service.process.returncode == 0


async def chat_kill_chat(service: LlmService) -> None:
    """The same question before and after the engine's death under four streams."""
    stub = service.stub
    question = chat("What is the capital of France?", sampling=GREEDY, stop=limit(24))
    found = Collected(await read_all(stub.Generate(question)))
    assert "Paris" in found.text()
    assert len(found.deltas) > 1
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
    os.kill(int(service.find(r'"worker":"llm-engine","pid":(\d+)') or 0), signal.SIGKILL)
    await asyncio.wait_for(asyncio.gather(*tasks), 20)
    assert errors == ["WORKER_DIED"] * 4
    async with asyncio.timeout(BOOT_S):
        while not await serving(stub):
            await asyncio.sleep(0.1)
    again = Collected(await read_all(stub.Generate(question)))
    assert again.text() == found.text()
    status = await service.status()
    assert status.worker_restarts == 1
    assert status.kv_entries_used == 0
