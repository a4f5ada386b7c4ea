"""Reading ahead: bounded, merged, complete, and failing only after what came before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from antiphon_core.errors import Unavailable
from antiphon_gateway.sse import READ_AHEAD_BYTES, ReadAhead


def ahead_of(source: AsyncIterator[str]) -> ReadAhead[list[str]]:
    async def boxed() -> AsyncIterator[list[str]]:
        async for text in source:
            yield [text]

    def merge(former: list[str], event: list[str]) -> bool:
        if former[0].isalpha() and event[0].isalpha():
            former[0] += event[0]
            return True
        return False

    return ReadAhead(boxed(), lambda event: len(event[0]), merge)


async def drain(ahead: ReadAhead[list[str]], pause: float) -> list[list[str]]:
    batches = []
    while (batch := await ahead.next_batch()) is not None:
        batches.append([event[0] for event in batch])
        await asyncio.sleep(pause)
    return batches


async def test_what_came_meanwhile_is_merged() -> None:
    async def source() -> AsyncIterator[str]:
        for text in ("a", "b", "1", "c", "d"):
            yield text

    async with ahead_of(source()).running() as ahead:
        await asyncio.sleep(0.01)
        assert await drain(ahead, 0.0) == [["ab", "1", "cd"]]


async def test_the_source_is_read_no_further_than_the_bound() -> None:
    produced = 0

    async def source() -> AsyncIterator[str]:
        nonlocal produced
        for _ in range(100):
            produced += 1
            yield "x" * (READ_AHEAD_BYTES // 4)

    async with ahead_of(source()).running() as ahead:
        await asyncio.sleep(0.02)
        assert produced <= 5
        batches = await drain(ahead, 0.0)
    assert sum(len(text) for batch in batches for text in batch) == 25 * READ_AHEAD_BYTES


async def test_failure_comes_after_everything_before_it() -> None:
    async def source() -> AsyncIterator[str]:
        yield "a"
        raise Unavailable("died")

    async with ahead_of(source()).running() as ahead:
        await asyncio.sleep(0.01)
        assert await ahead.next_batch() == [["a"]]
        with pytest.raises(Unavailable):
            await ahead.next_batch()


async def test_leaving_early_ends_the_source() -> None:
    ended = asyncio.Event()

    async def source() -> AsyncIterator[str]:
        try:
            while True:
                yield "1"
                await asyncio.sleep(0.001)
        finally:
            ended.set()

    async with ahead_of(source()).running() as ahead:
        await ahead.next_batch()
    await asyncio.wait_for(ended.wait(), 1.0)
