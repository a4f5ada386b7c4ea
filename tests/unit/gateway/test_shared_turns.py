"""What a step of many streams leaves to everything else on the gateway's loop."""

from __future__ import annotations

import asyncio
from typing import Any

from antiphon.llm.v1 import generate_pb2
from antiphon_gateway.clients.multiplex import GenerationMultiplexer, MultiplexedGeneration
from antiphon_gateway.domain.generation import GenerateRequest

STREAMS = 64
AT_ONCE = 8
"""Readers that may be woken in one turn of the loop."""


class OneStepCall:
    """A GenerateMany call whose only message has a token for every stream."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._all_started = asyncio.Event()

    async def write(self, message: generate_pb2.GenerateManyRequest) -> None:
        self._ids.append(message.start.stream_id)
        if len(self._ids) == STREAMS:
            self._all_started.set()

    async def read(self) -> generate_pb2.GenerateManyResponse:
        await self._all_started.wait()
        self._all_started.clear()
        return generate_pb2.GenerateManyResponse(
            stream_ids=self._ids,
            choices=[0] * STREAMS,
            texts=["x"] * STREAMS,
            token_counts=[1] * STREAMS,
        )

    def cancel(self) -> None: ...


async def test_readers_of_a_step_are_woken_a_few_at_a_time() -> None:
    """Else a new request waits for all of them, at every step of its own."""
    loop = asyncio.get_running_loop()
    turns = 0
    taken_in: dict[int, int] = {}

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    async def reader(generation: MultiplexedGeneration) -> None:
        event: Any = await anext(generation)
        assert event.text == "x"
        taken_in[turns] = taken_in.get(turns, 0) + 1

    calls = GenerationMultiplexer(OneStepCall)
    generations = [calls.start(GenerateRequest("a", timeout=60.0)) for _ in range(STREAMS)]
    turn()
    await asyncio.gather(*(reader(generation) for generation in generations))
    calls.close()
    assert sum(taken_in.values()) == STREAMS
    assert max(taken_in.values()) <= AT_ONCE, taken_in
