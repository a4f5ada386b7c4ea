"""Flush, sleep and wake from outside, over a scripted engine."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from antiphon.admin.v1 import node_pb2
from antiphon_core.errors import FailedPrecondition, InvalidArgument, Unavailable
from antiphon_core.lifecycle import State
from antiphon_core.rpc.streams import messages, open_stream, result
from antiphon_llm.messages import FlushCache, Sleep
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from llm_bench import LlmBench, limit, tokens
from scripted_engine import COUNT, HOLD, STUCK, Script
from support.waiting import until


def sleep_request(timeout: int | None = None) -> node_pb2.SleepRequest:
    request = node_pb2.SleepRequest()
    if timeout is not None:
        request.timeout.seconds = timeout
    return request


async def sleep(llm: LlmBench, timeout: int | None = None) -> node_pb2.SleepResponse:
    return await result(llm.node.Sleep(sleep_request(timeout)))


async def wake(llm: LlmBench) -> None:
    await result(llm.node.Wake(node_pb2.WakeRequest()))


async def health(llm: LlmBench, service: str) -> int:
    answer = await HealthStub(llm.channel).Check(health_pb2.HealthCheckRequest(service=service))
    return answer.status


@pytest.mark.parametrize(
    ("scope", "tenant"), [({"tenant": "blue"}, "blue"), ({"tenant": ""}, ""), ({"all": True}, None)]
)
async def test_a_flush_names_its_tenant_and_tells_what_is_free(
    llm: LlmBench, scope: dict[str, object], tenant: str | None
) -> None:
    request = node_pb2.FlushPrefixCacheRequest(**scope)  # pyright: ignore[reportArgumentType]
    response = await result(llm.node.FlushPrefixCache(request))
    assert (response.entries, response.bytes) == (3, 3000)
    assert [message.tenant for message in llm.seen(FlushCache)] == [tenant]


@pytest.mark.parametrize(("scope", "field"), [({}, "scope"), ({"all": False}, "all")])
async def test_a_flush_without_a_scope_reaches_no_engine(
    llm: LlmBench, scope: dict[str, bool], field: str
) -> None:
    request = node_pb2.FlushPrefixCacheRequest(**scope)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidArgument) as caught:
        await result(llm.node.FlushPrefixCache(request))
    assert caught.value.field == field and not llm.seen(FlushCache)


async def test_a_sleeping_service_is_live_not_ready_and_refuses(llm: LlmBench) -> None:
    assert (await sleep(llm, 7)).released_bytes == 4096
    assert [message.timeout_s for message in llm.seen(Sleep)] == [7.0]
    assert llm.lifecycle.state is State.ASLEEP
    snapshot = await result(llm.node.GetSnapshot(node_pb2.GetSnapshotRequest()))
    assert snapshot.status.state == node_pb2.NODE_STATE_ASLEEP
    assert snapshot.status.reason == node_pb2.NODE_REASON_ASLEEP
    assert not snapshot.status.degraded
    with pytest.raises(Unavailable) as caught:
        await llm.generate(tokens(COUNT, stop=limit(1)))
    assert caught.value.reason == "ASLEEP" and caught.value.retry_after
    await until_health(llm, "ready", health_pb2.HealthCheckResponse.NOT_SERVING)
    assert await health(llm, "live") == health_pb2.HealthCheckResponse.SERVING
    await wake(llm)
    assert llm.lifecycle.state is State.READY
    found = await llm.generate(tokens(COUNT, stop=limit(2)))
    assert found.completed[0].usage.output_tokens == 2


async def until_health(llm: LlmBench, service: str, status: int) -> None:
    """The health service follows the lifecycle in a task of its own."""
    async with asyncio.timeout(20):
        while await health(llm, service) != status:
            await asyncio.sleep(0.01)


async def test_sleep_and_wake_are_idempotent(llm: LlmBench) -> None:
    await wake(llm)
    assert llm.lifecycle.state is State.READY
    await sleep(llm)
    await sleep(llm)
    assert llm.lifecycle.state is State.ASLEEP
    await wake(llm)
    await wake(llm)
    assert llm.lifecycle.state is State.READY
    assert [message.timeout_s for message in llm.seen(Sleep)] == [Sleep("").timeout_s] * 2


async def test_a_sleep_waits_for_what_runs_and_cuts_nothing_off(llm: LlmBench) -> None:
    async with open_stream(llm.stub.Generate(tokens(STUCK, stop=limit(5)))) as call:
        accepted = await anext(aiter(messages(call)))
        assert accepted.HasField("accepted")
        sleeping = asyncio.ensure_future(sleep(llm))
        await until(lambda: llm.lifecycle.state is State.ASLEEP)
        with pytest.raises(Unavailable) as caught:
            await llm.generate(tokens(COUNT, stop=limit(1)))
        assert caught.value.reason == "ASLEEP"
        assert not sleeping.done() and llm.front.measures().running == 1
    await asyncio.wait_for(sleeping, 20)


async def test_a_sleep_that_runs_out_of_time_is_a_failed_precondition(llm: LlmBench) -> None:
    async with open_stream(llm.stub.Generate(tokens(HOLD))):
        await until(lambda: llm.front.measures().waiting == 1)
        with pytest.raises(FailedPrecondition) as caught:
            await sleep(llm, 0)
    assert (caught.value.reason, caught.value.message) == ("WRONG_STATE", "requests still run")
    assert llm.lifecycle.state is State.READY


async def test_a_negative_timeout_is_refused(llm: LlmBench) -> None:
    with pytest.raises(InvalidArgument, match="timeout"):
        await sleep(llm, -1)
    assert not llm.seen(Sleep)


async def test_who_waits_for_an_engine_that_dies_hears_of_it(llm_process: LlmBench) -> None:
    llm = llm_process
    async with open_stream(llm.stub.Generate(tokens(STUCK))) as call:
        await anext(aiter(messages(call)))
        sleeping = asyncio.ensure_future(sleep(llm))
        await until(lambda: llm.lifecycle.state is State.ASLEEP)
        os.kill(llm.worker.pid, signal.SIGKILL)
        with pytest.raises(Unavailable) as caught:
            await asyncio.wait_for(sleeping, 20)
        assert caught.value.reason == "WORKER_DIED"
        call.cancel()
    await until(lambda: llm.lifecycle.state is State.READY, 20)


async def test_before_boot_there_is_nothing_to_flush_or_wake(model_cache: Path) -> None:
    made = LlmBench(model_cache, Script())
    await made.open()
    for call in (
        made.node.FlushPrefixCache(node_pb2.FlushPrefixCacheRequest(all=True)),
        made.node.Sleep(sleep_request()),
        made.node.Wake(node_pb2.WakeRequest()),
    ):
        with pytest.raises(Unavailable) as caught:
            await result(call)
        assert caught.value.reason == "BOOTING"
    await made.channel.close()
    await made.server.stop(0.0)


async def test_a_caller_who_leaves_leaves_nothing_behind(llm: LlmBench) -> None:
    assert llm.script is not None and llm.front._engine is not None
    waiting = llm.front._engine.control._waiting
    llm.script.deaf = True
    call = llm.node.FlushPrefixCache(node_pb2.FlushPrefixCacheRequest(all=True))
    await until(lambda: llm.seen(FlushCache))
    assert len(waiting) == 1
    call.cancel()
    await until(lambda: not waiting)
