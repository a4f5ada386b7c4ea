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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_balanced_bench() -> AsyncIterator[GatewayBench]:
    """A ready gateway that opens one RPC a generation, as it does before a balancing proxy."""
    made = GatewayBench(balanced=True)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def bench(module_bench: GatewayBench) -> GatewayBench:
    """The module's gateway with default answers."""
    return with_default_answers(module_bench)


@pytest.fixture
def balanced_bench(module_balanced_bench: GatewayBench) -> GatewayBench:
    """The module's gateway before a proxy, with default answers."""
    return with_default_answers(module_balanced_bench)


@pytest.fixture(params=["many", "one"])
def either_bench(request: pytest.FixtureRequest) -> GatewayBench:
    """Both ways to carry generations, one after the other."""
    return request.getfixturevalue("bench" if request.param == "many" else "balanced_bench")


def with_default_answers(made: GatewayBench) -> GatewayBench:
    """Takes back what the former test scripted and saw."""
    fakes = made.fakes
    fakes.llm.script = LlmScript()
    fakes.llm.break_streams = False
    fakes.vocoder.script = SpeechScript()
    fakes.vocoder.texts.clear()
    fakes.recognition.script = RecognitionScript()
    fakes.recognition.files.clear()
    for servicer in (fakes.llm, fakes.vocoder, fakes.recognition):
        servicer.calls.cancelled_at.clear()
    return made
