"""The openai package for node waits as a full gateway tells it, and is then served."""

from __future__ import annotations

import asyncio

import pytest
from antiphon_core.errors import ResourceExhausted
from fake_backends import WORDS, LlmScript
from gateway_bench import GatewayBench
from support.node import node_client, run_driver
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_full_queue_is_asked_again(bench: GatewayBench) -> None:
    folder = await asyncio.to_thread(node_client)
    before = len(bench.fakes.llm.calls.requests)
    bench.fakes.llm.script = LlmScript(fail_before=ResourceExhausted("full", retry_after=0.3))
    running = asyncio.create_task(asyncio.to_thread(run_driver, folder, bench.url, "retry"))
    await until(lambda: len(bench.fakes.llm.calls.requests) > before, 60)
    bench.fakes.llm.script = LlmScript()
    seen = (await running)["retry"]
    assert seen["text"] == "".join(WORDS), seen
    assert len(bench.fakes.llm.calls.requests) - before == 2
