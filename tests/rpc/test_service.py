"""run_service in a process of its own: boot, signals, drain, exit statuses."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from antiphon.admin.v1 import node_pb2
from antiphon.admin.v1.node_pb2_grpc import NodeAdminServiceStub
from antiphon_core import errors
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.streams import result
from google.protobuf.wrappers_pb2 import StringValue
from rpc_stub import ScriptStub

MODULE = Path(__file__).parent / "service_process.py"


class Service:
    """A started service_process with its log."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log: list[dict[str, Any]] = []
        self.plain: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            try:
                self.log.append(json.loads(line))
            except json.JSONDecodeError:
                self.plain.append(line.decode().rstrip())

    async def event(self, name: str) -> dict[str, Any]:
        async with asyncio.timeout(40):
            while True:
                for line in self.log:
                    if line["event"] == name:
                        return line
                await asyncio.sleep(0.005)

    async def connect(self, ready: bool = True) -> ScriptStub:
        started = await self.event("rpc_server_started")
        if ready:
            await self.event("service_ready")
        self.channel = open_channel(f"127.0.0.1:{started['port']}")
        return ScriptStub(self.channel)

    async def exit_status(self, seconds: float = 30.0) -> int:
        status = await asyncio.wait_for(self.process.wait(), seconds)
        await self._reader
        return status


@pytest.fixture
async def start() -> AsyncIterator[Any]:
    made: list[Service] = []

    async def start_service(behaviour: str = "plain", bind: str = "127.0.0.1:0") -> Service:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(MODULE),
            behaviour,
            bind,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        made.append(Service(process))
        return made[-1]

    yield start_service
    for service in made:
        if hasattr(service, "channel"):
            await service.channel.close()
        if service.process.returncode is None:
            service.process.kill()
            await service.process.wait()


async def running_call(service: Service, stub: ScriptStub, seconds: float) -> asyncio.Future[Any]:
    call = asyncio.ensure_future(result(stub.unary_unary(StringValue(value=str(seconds)))))
    await service.event("call_runs")
    return call


async def test_a_signal_finishes_running_work_and_exits_zero(start) -> None:
    service = await start()
    stub = await service.connect()
    call = await running_call(service, stub, 2.0)
    service.process.send_signal(signal.SIGTERM)
    await service.event("service_draining")
    with pytest.raises(errors.Unavailable) as caught:
        await result(stub.unary_unary(StringValue(value="now")))
    assert caught.value.reason == "DRAINING"
    assert (await call).value == "done"
    assert await service.exit_status() == 0
    assert service.process.stdout is not None
    assert await service.process.stdout.read() == b"closed\n"


async def test_a_second_signal_skips_the_grace(start) -> None:
    service = await start()
    stub = await service.connect()
    call = await running_call(service, stub, 30.0)
    started = time.monotonic()
    service.process.send_signal(signal.SIGINT)
    await service.event("service_draining")
    service.process.send_signal(signal.SIGTERM)
    with pytest.raises(errors.Unavailable) as caught:
        await call
    assert caught.value.reason == "DRAINING"
    assert await service.exit_status() == 0
    assert time.monotonic() - started < 15.0


async def test_other_work_than_calls_is_waited_for_and_hurried_too(start) -> None:
    service = await start("other work")
    await service.connect()
    node = NodeAdminServiceStub(service.channel)
    service.process.send_signal(signal.SIGTERM)
    await service.event("service_draining")
    assert await service.process.stdout.readline() == b"other work may take 20 s\n"
    snapshot = await node.GetSnapshot(node_pb2.GetSnapshotRequest())
    assert snapshot.status.state == node_pb2.NODE_STATE_DRAINING
    service.process.send_signal(signal.SIGTERM)
    assert await service.exit_status(15.0) == 0


async def test_a_status_watcher_does_not_hold_the_drain(start) -> None:
    service = await start()
    await service.connect()
    watch = NodeAdminServiceStub(service.channel).WatchStatus(node_pb2.WatchStatusRequest())
    await watch.read()
    service.process.send_signal(signal.SIGTERM)
    assert await service.exit_status(15.0) == 0
    watch.cancel()


async def test_shutdown_by_rpc_drains_with_its_grace(start) -> None:
    service = await start()
    stub = await service.connect()
    call = await running_call(service, stub, 30.0)
    request = node_pb2.ShutdownRequest(reason="test")
    request.grace.nanos = 200_000_000
    await NodeAdminServiceStub(service.channel).Shutdown(request)
    with pytest.raises(errors.Unavailable):
        await call
    assert await service.exit_status(15.0) == 0


async def test_it_answers_while_it_boots_and_can_be_stopped_then(start) -> None:
    service = await start("slow")
    stub = await service.connect(ready=False)
    with pytest.raises(errors.Unavailable) as caught:
        await result(stub.unary_unary(StringValue(value="now")))
    assert (caught.value.reason, caught.value.metadata["phase"]) == ("BOOTING", "weights")
    service.process.send_signal(signal.SIGTERM)
    assert await service.exit_status(15.0) == 0


async def test_a_typed_boot_error_is_one_line_and_71(start) -> None:
    service = await start("typed")
    assert await service.exit_status() == 71
    assert service.plain == [
        "antiphon test: cannot start: model 'x' is no GGUF file; give a .gguf file"
    ]
    assert not any("exception" in line for line in service.log)


async def test_a_defect_in_boot_is_logged_with_its_traceback_and_71(start) -> None:
    service = await start("defect")
    assert await service.exit_status() == 71
    line = await service.event("boot_failed")
    assert line["phase"] == "weights"
    assert "RuntimeError: defect in boot" in line["exception"]


async def test_a_stalled_boot_dumps_stacks_and_fails(start) -> None:
    service = await start("stall")
    assert await service.exit_status() == 71
    assert (await service.event("boot_stalled"))["phase"] == "weights"
    assert any(line.startswith("Current thread") for line in service.plain)


async def test_a_failure_in_service_exits_70(start) -> None:
    service = await start()
    stub = await service.connect()
    assert (await stub.unary_unary(StringValue(value="fail"))).value == "done"
    assert await service.exit_status() == 70
    assert (await service.event("service_failed"))["reason"] == "the engine gave up"


async def test_a_port_in_use_is_one_line_and_71(start) -> None:
    first = await start()
    await first.connect()
    port = (await first.event("rpc_server_started"))["port"]
    second = await start(bind=f"127.0.0.1:{port}")
    assert await second.exit_status() == 71
    (line,) = second.plain
    assert line == (
        f"antiphon test: cannot start: port {port} on 127.0.0.1 is already in use;"
        " choose another with --bind or the key bind in [test]"
    )
