"""A speech service with a scripted voice; makes the bench importable under importlib mode."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))

from speech_bench import SpeechBench, ToneVoice, running


@pytest.fixture(scope="module")
def module_voice() -> ToneVoice:
    return ToneVoice()


@pytest.fixture
def voice(module_voice: ToneVoice) -> Iterator[ToneVoice]:
    module_voice.hop_seconds, module_voice.fail, module_voice.hops = 0.0, False, 0
    yield module_voice


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_bench(module_voice: ToneVoice) -> AsyncIterator[SpeechBench]:
    settings = {"slots": 4, "queue_limit": 2, "stream_idle_s": 0.6, "progress_s": 0.3}
    async with running(module_voice, **settings) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def bench(module_bench: SpeechBench, voice: ToneVoice) -> AsyncIterator[SpeechBench]:
    """One service a module; every test must leave it idle."""
    yield module_bench
    await module_bench.until_idle()
