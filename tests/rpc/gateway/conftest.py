"""Fixtures of the gateway's tests over real sockets: one gateway a module, fresh scripts a test."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))

from fake_backends import LlmScript, RecognitionScript, SpeechScript
from gateway_bench import GatewayBench


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_bench() -> AsyncIterator[GatewayBench]:
    """A ready gateway before ready backends."""
    made = GatewayBench()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def bench(module_bench: GatewayBench) -> GatewayBench:
    """The module's gateway with default answers."""
    fakes = module_bench.fakes
    fakes.llm.script = LlmScript()
    fakes.vocoder.script = SpeechScript()
    fakes.vocoder.texts.clear()
    fakes.recognition.script = RecognitionScript()
    fakes.recognition.files.clear()
    for servicer in (fakes.llm, fakes.vocoder, fakes.recognition):
        servicer.calls.cancelled_at.clear()
    return module_bench
