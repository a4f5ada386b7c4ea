"""Clients that go away from the real stack: rows, entries and slots are as they were."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random

import pytest
from support.suite import RunningSuite
from support.waiting import until

pytestmark = pytest.mark.real

ABORTS = 120
AT_ONCE = 6
HELD = ("running", "waiting", "kv_entries_used", "slots_used")


def held(suite: RunningSuite) -> dict[str, int]:
    """What requests hold in the llm and in the vocoder service."""
    snapshot = suite.snapshot()
    return {
        f"{replica} {name}": int(snapshot[replica]["status"].get(name, 0))
        for replica in ("llm-0", "vocoder-0")
        for name in HELD
    }


async def abort(suite: RunningSuite, chance: random.Random) -> None:
    """Sends a request and resets the connection: at once, while it waits, or inside the answer."""
    path, body = chance.choice(
        (
            ("chat/completions", {"messages": [{"role": "user", "content": "Tell a story."}]}),
            ("completions", {"prompt": ["Once upon a time", "It was a dark"], "max_tokens": 200}),
            ("responses", {"input": "Tell a story."}),
            ("audio/speech", {"input": "One two three four five. " * 20, "voice": "alloy"}),
        )
    )
    if path != "audio/speech":
        body["stream"] = chance.random() < 0.7
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", suite.port)
    head = f"POST /v1/{path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data)
    await asyncio.sleep(chance.choice((0, 0.01, 0.1, 0.4)) * chance.random())
    if chance.random() < 0.4:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(chance.randrange(1, 2000)), 0.5)
    writer.transport.abort()


async def test_random_aborts_leave_nothing_behind(suite: RunningSuite) -> None:
    await until(lambda: not any(held(suite).values()), 30)
    chance = random.Random(11)
    for _ in range(ABORTS // AT_ONCE):
        await asyncio.gather(*(abort(suite, chance) for _ in range(AT_ONCE)))
    await until(lambda: not any(held(suite).values()), 30)
    suite.wait_ready(5)
