"""Health, admission, reflection, drain and the port in use."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import grpc
import pytest
from antiphon_core import errors
from antiphon_core import lifecycle as lifecycle_module
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.server import RpcServer
from antiphon_core.rpc.streams import result
from google.protobuf.wrappers_pb2 import StringValue
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from rpc_stub import SERVICE, Bench, ScriptStub, add_script_servicer

REQUEST = StringValue(value="x")


async def health(bench: Bench, name: str) -> str:
    stub = health_pb2_grpc.HealthStub(bench.channel)
    response = await stub.Check(health_pb2.HealthCheckRequest(service=name))
    return health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)


async def all_health(bench: Bench) -> dict[str, bool]:
    names = {"live": "live", "ready": "ready", "": "all", SERVICE: "service"}
    return {label: await health(bench, name) == "SERVING" for name, label in names.items()}


async def settle() -> None:
    """Health follows the lifecycle from a task of its own."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_health_follows_the_lifecycle(booting_bench: Bench) -> None:
    bench = booting_bench
    lifecycle = bench.lifecycle
    starting = {"live": True, "ready": False, "all": False, "service": False}
    serving = dict.fromkeys(starting, True)
    assert await all_health(bench) == starting
    lifecycle.booting("weights", 0.5)
    await settle()
    assert await all_health(bench) == starting
    lifecycle.ready()
    await settle()
    assert await all_health(bench) == serving
    lifecycle.degraded("voice", "missing")
    await settle()
    assert await all_health(bench) == serving
    lifecycle.draining()
    await settle()
    assert await all_health(bench) == starting
    lifecycle.undrain()
    await settle()
    assert await all_health(bench) == serving
    lifecycle.failed("the engine gave up")
    await settle()
    assert await all_health(bench) == dict.fromkeys(starting, False)


async def test_health_watch_sees_the_change_at_once(booting_bench: Bench) -> None:
    stub = health_pb2_grpc.HealthStub(booting_bench.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="ready"))
    statuses = []
    async for response in watch:
        statuses.append(response.status)
        if len(statuses) == 2:
            break
        await asyncio.to_thread(booting_bench.lifecycle.ready)
    assert statuses == [
        health_pb2.HealthCheckResponse.NOT_SERVING,
        health_pb2.HealthCheckResponse.SERVING,
    ]
    watch.cancel()


async def test_work_is_refused_while_booting_with_the_phase(booting_bench: Bench) -> None:
    booting_bench.lifecycle.booting("weights", 0.25)
    with pytest.raises(errors.Unavailable) as caught:
        await result(booting_bench.stub.unary_unary(REQUEST))
    assert caught.value.reason == "BOOTING"
    assert caught.value.metadata["phase"] == "weights"
    assert float(caught.value.metadata["elapsed_seconds"]) >= 0
    assert caught.value.retry_after
    assert not booting_bench.servicer.entered.is_set()


async def test_a_refusal_says_that_nothing_was_started(booting_bench: Bench) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await booting_bench.stub.unary_unary(REQUEST)
    assert ("x-antiphon-not-started", "1") in list(caught.value.trailing_metadata())


async def test_a_drain_refuses_new_work_and_finishes_old(bench: Bench) -> None:
    release = asyncio.Event()

    async def script(text: str) -> str:
        await release.wait()
        return "finished"

    bench.servicer.script = script
    running = asyncio.ensure_future(result(bench.stub.unary_unary(REQUEST)))
    await asyncio.wait_for(bench.servicer.entered.wait(), 20)
    bench.lifecycle.draining()
    stopping = asyncio.create_task(bench.server.stop(60.0))
    with pytest.raises(errors.Unavailable) as caught:
        await result(bench.stub.unary_unary(REQUEST))
    assert caught.value.reason == "DRAINING"
    assert await health(bench, "live") == "SERVING"
    release.set()
    assert (await running).value == "finished"
    await asyncio.wait_for(stopping, 20)


async def test_calls_that_outlive_the_grace_get_a_terminal(bench: Bench) -> None:
    async def script(text: str) -> str:
        await asyncio.Event().wait()
        return text

    bench.servicer.script = script
    running = asyncio.ensure_future(result(bench.stub.unary_unary(REQUEST)))
    await asyncio.wait_for(bench.servicer.entered.wait(), 20)
    await asyncio.wait_for(bench.server.stop(0.05), 20)
    with pytest.raises(errors.Unavailable) as caught:
        await running
    assert caught.value.reason == "DRAINING"
    assert bench.servicer.cleaned.is_set()


async def test_a_drain_with_a_delay_still_serves_at_first(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(lifecycle_module, "time", clock)
    bench.lifecycle.draining(refuse_after=0.2)
    await settle()
    assert await health(bench, "ready") == "NOT_SERVING"
    assert (await bench.stub.unary_unary(REQUEST)).value == "x"
    now += 0.25
    with pytest.raises(errors.Unavailable):
        await result(bench.stub.unary_unary(REQUEST))


async def test_a_port_in_use_names_the_port_and_the_cure(bench: Bench) -> None:
    second = RpcServer(
        service="llm",
        bind=f"127.0.0.1:{bench.port}",
        lifecycle=Lifecycle(),
        bind_setting="rpc_bind",
    )
    with pytest.raises(errors.FailedPrecondition) as caught:
        await second.start()
    message = str(caught.value)
    assert f"port {bench.port} on 127.0.0.1 is already in use" in message
    assert "--rpc-bind" in message
    assert "rpc_bind in [llm]" in message
    await second.stop(0.0)


async def test_an_address_that_is_not_ours_is_a_clear_error() -> None:
    server = RpcServer(service="llm", bind="192.0.2.1:5000", lifecycle=Lifecycle())
    with pytest.raises(errors.FailedPrecondition, match=r"cannot listen on 192\.0\.2\.1:5000: "):
        await server.start()
    await server.stop(0.0)


async def test_a_unix_socket_serves(tmp_path) -> None:
    lifecycle = Lifecycle()
    lifecycle.ready()
    bench = Bench()
    server = RpcServer(service="test", bind=f"unix:{tmp_path}/s", lifecycle=lifecycle)
    server.add(add_script_servicer, bench.servicer, SERVICE)
    assert await server.start() == 0
    async with open_channel(f"unix:{tmp_path}/s") as channel:
        assert (await ScriptStub(channel).unary_unary(REQUEST)).value == "x"
    await server.stop(0.0)


async def test_services_cannot_be_added_late(bench: Bench) -> None:
    with pytest.raises(errors.FailedPrecondition, match="before the server starts"):
        bench.server.add(add_script_servicer, bench.servicer, "antiphon.test.v1.OtherService")


async def test_reflection_lists_the_services(bench: Bench) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(bench.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    async for response in stub.ServerReflectionInfo(iter([request])):
        names = {service.name for service in response.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names


async def test_messages_up_to_the_limit_pass_and_above_fail_typed(bench: Bench) -> None:
    below = StringValue(value="x" * (30 * 1024 * 1024))
    assert len((await result(bench.stub.unary_unary(below))).value) == len(below.value)
    above = StringValue(value="x" * (65 * 1024 * 1024))
    with pytest.raises(errors.ResourceExhausted) as caught:
        await result(bench.stub.unary_unary(above))
    assert caught.value.reason == "TOO_LARGE"


async def test_an_unknown_method_is_unimplemented(bench: Bench) -> None:
    call = bench.channel.unary_unary(f"/{SERVICE}/Nothing")
    with pytest.raises(errors.Unimplemented):
        await result(call(b""))
