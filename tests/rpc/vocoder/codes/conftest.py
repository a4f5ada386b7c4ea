"""One service over a scripted codec for each module of tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from codes_bench import CodecBench, serving
from support.fake_codec import FakeCodec


@pytest.fixture(scope="module")
def module_codec() -> FakeCodec:
    return FakeCodec(delay=8)


@pytest.fixture
def codec(module_codec: FakeCodec) -> Iterator[FakeCodec]:
    module_codec.step_seconds = 0.0
    yield module_codec


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_bench(module_codec: FakeCodec) -> AsyncIterator[CodecBench]:
    settings = {"codec_slots": 4, "queue_limit": 2, "stream_idle_s": 0.8, "progress_s": 0.3}
    async with serving(module_codec, **settings) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def bench(module_bench: CodecBench, codec: FakeCodec) -> AsyncIterator[CodecBench]:
    """One service a module; every test must leave it idle."""
    yield module_bench
    await module_bench.until_idle()
