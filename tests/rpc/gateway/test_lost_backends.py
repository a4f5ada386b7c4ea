"""Which lost calls may be told to the edge as not begun: it sends those to another gateway."""

from __future__ import annotations

import asyncio

import pytest
from antiphon_core.errors import Unavailable
from antiphon_core.rpc.channel import open_channel
from antiphon_gateway.clients.llm import LlmBackend
from antiphon_gateway.domain.generation import GenerateRequest
from fake_backends import FakeBackends, LlmScript
from support.waiting import until
from support.wire import Wire


@pytest.mark.parametrize("multiplexed", [True, False])
async def test_a_request_that_was_sent_may_have_begun(multiplexed: bool) -> None:
    """The service took it, said nothing yet, and its connection broke."""
    fakes = FakeBackends()
    await fakes.start()
    fakes.llm.script = LlmScript(accept_delay=30)
    wire = Wire(fakes.port)
    async with open_channel(f"127.0.0.1:{await wire.start()}") as channel:
        backend = LlmBackend(channel, multiplexed=multiplexed)
        lost = asyncio.create_task(first_event(backend))
        await until(lambda: fakes.llm.calls.running == 1)
        await wire.cut()
        with pytest.raises(Unavailable) as error:
            await lost
    await fakes.stop()
    assert error.value.reason == "WORKER_DIED"


@pytest.mark.parametrize("multiplexed", [True, False])
async def test_a_request_that_reached_nobody_has_not(multiplexed: bool) -> None:
    async with open_channel("127.0.0.1:1") as channel:
        backend = LlmBackend(channel, multiplexed=multiplexed)
        with pytest.raises(Unavailable) as error:
            await first_event(backend)
    assert error.value.reason == "NO_BACKEND"


@pytest.mark.parametrize("multiplexed", [True, False])
async def test_a_service_that_refuses_has_not(multiplexed: bool) -> None:
    fakes = FakeBackends()
    await fakes.start(ready=False)
    try:
        async with open_channel(fakes.target) as channel:
            backend = LlmBackend(channel, multiplexed=multiplexed)
            with pytest.raises(Unavailable) as error:
                await first_event(backend)
    finally:
        await fakes.stop()
    assert error.value.reason == "BOOTING"


async def first_event(backend: LlmBackend) -> object:
    async with backend.generate(GenerateRequest("Hi", timeout=20.0)) as events:
        return await anext(events)
