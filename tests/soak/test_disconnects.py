"""32 chats at once with random disconnects for a minute: the others notice nothing."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter

import httpx
import psutil
import pytest
from support.suite import RunningSuite

pytestmark = [pytest.mark.real, pytest.mark.soak, pytest.mark.timeout(240)]

CLIENTS = 32
SECONDS = 60.0
WARM_UP_SECONDS = 20.0
DISCONNECT_SHARE = 0.4
MEMORY_GROWTH = 0.05
"""Share by which resident memory may grow after the warm-up: allocator noise, not a leak."""


async def one_chat(client: httpx.AsyncClient, chance: random.Random, counts: Counter) -> None:
    leave_after = chance.randint(0, 12) if chance.random() < DISCONNECT_SHARE else None
    body = {
        "messages": [{"role": "user", "content": "word " * chance.randint(1, 60)}],
        "max_tokens": chance.randint(4, 32),
        "temperature": 0.8,
        "stream": True,
    }
    seen = 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
            counts["refused"] += 1
            await asyncio.sleep(float(response.headers.get("retry-after", "1")))
            return
        assert response.status_code == httpx.codes.OK, await response.aread()
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                counts["done"] += 1
                return
            assert "error" not in json.loads(line[6:]), line
            seen += 1
            if leave_after is not None and seen > leave_after:
                counts["left"] += 1
                return
    raise AssertionError("a stream ended without its terminal")


async def chat_until(deadline: float, url: str, seed: int, counts: Counter) -> None:
    chance = random.Random(seed)
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while time.monotonic() < deadline:
            await one_chat(client, chance, counts)


def resident_bytes(suite: RunningSuite) -> dict[str, int]:
    modules = ("antiphon_llm", "antiphon_llm.engine", "antiphon_gateway")
    return {
        module: sum(process.memory_info().rss for process in suite.processes(module))
        for module in modules
    }


async def load(suite: RunningSuite, seconds: float, counts: Counter) -> None:
    deadline = time.monotonic() + seconds
    async with asyncio.TaskGroup() as clients:
        for number in range(CLIENTS):
            clients.create_task(chat_until(deadline, suite.url, number, counts))


async def settled(suite: RunningSuite) -> dict:
    """The llm's status once nothing runs."""
    async with asyncio.timeout(10):
        while True:
            status = suite.snapshot()["llm-0"]["status"]
            if int(status["running"]) == 0 and int(status["kv_entries_used"]) == 0:
                return status
            await asyncio.sleep(0.2)


async def test_random_disconnects_leave_nothing_behind(suite: RunningSuite):
    before = await settled(suite)
    await load(suite, WARM_UP_SECONDS, Counter())
    warm = resident_bytes(suite)
    counts: Counter = Counter()
    await load(suite, SECONDS, counts)
    after = await settled(suite)
    print(f"done {counts['done']}, left {counts['left']}, refused {counts['refused']}")
    assert counts["done"] > CLIENTS
    assert counts["left"] > CLIENTS
    assert after["slots_used"] == before["slots_used"]
    assert after["kv_entries_total"] == before["kv_entries_total"]
    for module, resident in resident_bytes(suite).items():
        assert resident <= warm[module] * (1 + MEMORY_GROWTH), module
    assert psutil.pid_exists(suite.pid)
