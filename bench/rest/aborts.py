"""What clients that leave at random leave behind in the real engine."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from bench.rest.processes import chat_body, free_port, gateway, http_request, wait_until_served
from bench.service import llm_service

AT_ONCE = 16


async def leftovers(folder: Path, aborts: int = 1000) -> dict[str, float]:
    """KV entries and requests that the service still holds after so many aborted streams."""
    chance = random.Random(7)
    port = free_port()
    flags = ("--max-rows", str(AT_ONCE), "--context-limit", "1024")
    async with llm_service(folder, *flags) as service:
        before = await service.idle()
        with gateway(port, [service.address]):
            await asyncio.to_thread(wait_until_served, port)
            for _ in range(0, aborts, AT_ONCE):
                await asyncio.gather(*(_abort(port, chance) for _ in range(AT_ONCE)))
            after = await service.idle()
    return {
        "aborts": aborts,
        "entries": after.kv_entries_used - before.kv_entries_used,
        "requests": after.running + after.waiting,
    }


async def _abort(port: int, chance: random.Random) -> None:
    """A stream that is left before its answer, in it, or at its first bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(http_request(chat_body(64)))
    if chance.random() < 0.5:
        await asyncio.sleep(chance.random() * 0.05)
    else:
        await reader.read(chance.randrange(1, 4000))
    writer.transport.abort()
