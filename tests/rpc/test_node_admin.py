"""NodeAdminService over a real socket."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from antiphon.admin.v1 import node_pb2
from antiphon.admin.v1.node_pb2_grpc import NodeAdminServiceStub
from antiphon_core import errors, metrics
from antiphon_core import node as node_module
from antiphon_core.config import Settings, load_settings, setting
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.node import (
    NodeAdminServicer,
    NodeMeasures,
    RequestPhase,
    RequestRecord,
    ServerInfo,
)
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.server import RpcServer
from antiphon_core.rpc.streams import messages, open_stream, result
from prometheus_client.openmetrics.parser import text_string_to_metric_families


class NodeSettings(Settings):
    width: int = setting(3, doc="Width.")
    token: str = setting("", doc="Token.", secret=True)


class Node:
    """A process that serves nothing but its NodeAdminService."""

    def __init__(self) -> None:
        self.lifecycle = Lifecycle(boot_id="boot-1")
        self.measures = NodeMeasures(models=("m",))
        self.shutdowns: list[float | None] = []
        self.stopped: list[str] = []
        settings = load_settings(
            NodeSettings,
            section="llm",
            argv=["--token", "hush"],
            environ={"ANTIPHON_LLM_WIDTH": "4"},
        )
        self.servicer = NodeAdminServicer(
            self.lifecycle,
            lambda: ServerInfo(service="llm", version="1.2", limits={"context_limit": 2048}),
            lambda: self.measures,
            config=settings.values,
            requests=lambda: [
                RequestRecord(
                    "r1", "generate", "m", 100.5, (RequestPhase("queued", 0.0, 0.25),), "stop", 3, 4
                )
            ],
            on_shutdown=self.shutdowns.append,
            stop_request=self._stop,
        )
        self.server = RpcServer(
            service="llm", bind="127.0.0.1:0", lifecycle=self.lifecycle, node=self.servicer
        )

    async def _stop(self, request_id: str) -> None:
        if request_id != "r1":
            raise errors.NotFound(f"no request {request_id!r}")
        self.stopped.append(request_id)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    made = Node()
    port = await made.server.start()
    made.channel = open_channel(f"127.0.0.1:{port}")
    made.stub = NodeAdminServiceStub(made.channel)
    yield made
    await made.channel.close()
    await made.server.stop(0.0)


@pytest.fixture
def rare_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two changes no status comes, however slow the machine is."""
    monkeypatch.setattr(node_module, "_IDLE_SECONDS", 600.0)


def watch(node: Node):
    return open_stream(node.stub.WatchStatus(node_pb2.WatchStatusRequest()))


@pytest.mark.usefixtures("rare_heartbeat")
async def test_status_comes_at_once_and_on_each_change(node: Node) -> None:
    seen: list[node_pb2.NodeStatus] = []
    async with watch(node) as call:
        async for response in messages(call):
            seen.append(response.status)
            if len(seen) == 1:
                node.lifecycle.booting("weights", 0.5)
            elif len(seen) == 2:
                node.lifecycle.ready()
            elif len(seen) == 3:
                node.lifecycle.degraded("voice", "missing")
            else:
                break
    assert [status.state for status in seen] == [
        node_pb2.NODE_STATE_NOT_STARTED,
        node_pb2.NODE_STATE_BOOTING,
        node_pb2.NODE_STATE_READY,
        node_pb2.NODE_STATE_DEGRADED,
    ]
    assert (seen[1].phase, seen[1].phase_fraction) == ("weights", 0.5)
    assert seen[1].reason == node_pb2.NODE_REASON_BOOTING
    assert [(part.component, part.reason) for part in seen[3].degraded] == [("voice", "missing")]
    assert [status.sequence for status in seen] == [1, 2, 3, 4]
    assert {status.boot_id for status in seen} == {"boot-1"}


async def test_unknown_gauges_are_absent_and_zero_is_zero(node: Node) -> None:
    node.measures = NodeMeasures(slots_used=0, slots_total=8, tick_age=0.5)
    snapshot = await node.stub.GetSnapshot(node_pb2.GetSnapshotRequest())
    status = snapshot.status
    assert status.HasField("slots_used")
    assert status.slots_used == 0
    assert not status.HasField("kv_entries_used")
    assert status.tick_age.nanos == 500_000_000


@pytest.mark.parametrize("running", [0, 2])
async def test_a_status_comes_each_second_while_the_load_stays(node: Node, running: int) -> None:
    node.lifecycle.ready()
    node.measures = NodeMeasures(running=running)
    async with watch(node) as call:
        stream = messages(call)
        times = [(await anext(stream)).status.at.ToNanoseconds() / 1e9 for _ in range(3)]
    # A timer may ring late on a busy machine, never early.
    assert min(after - before for before, after in itertools.pairwise(times)) > 0.95


@pytest.mark.parametrize(
    "change",
    [{"waiting": 1}, {"running": 0}, {"models": ("other",)}, {"kv_entries_used": 20}],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.usefixtures("rare_heartbeat")
async def test_a_changed_load_is_told_without_a_heartbeat(node: Node, change: dict) -> None:
    node.lifecycle.ready()
    node.measures = NodeMeasures(running=1, kv_entries_used=10, kv_entries_total=1000)
    async with watch(node) as call:
        stream = messages(call)
        await anext(stream)
        await asyncio.sleep(0.15)
        node.measures = replace(node.measures, **change)
        assert (await anext(stream)).status.sequence == 2


@pytest.mark.usefixtures("rare_heartbeat")
async def test_a_few_kv_entries_are_no_news(node: Node) -> None:
    node.measures = NodeMeasures(running=1, kv_entries_used=10, kv_entries_total=1000)
    async with watch(node) as call:
        stream = messages(call)
        await anext(stream)
        for used in (*range(11, 19), 20):
            await asyncio.sleep(0.1)
            node.measures = replace(node.measures, kv_entries_used=used)
        status = (await anext(stream)).status
    assert (status.sequence, status.kv_entries_used) == (2, 20)


async def test_watchers_share_one_sequence(node: Node) -> None:
    async def take(count: int) -> list[int]:
        async with watch(node) as call:
            sequence = []
            async for response in messages(call):
                sequence.append(response.status.sequence)
                if len(sequence) == count:
                    return sequence
        return []

    node.measures = NodeMeasures(running=1)

    async def change() -> None:
        for running in range(2, 40):
            await asyncio.sleep(0.1)
            node.measures = NodeMeasures(running=running)

    changes = asyncio.create_task(change())
    first, second = await asyncio.gather(take(5), take(5))
    changes.cancel()
    for sequence in (first, second):
        assert sequence == list(range(sequence[0], sequence[0] + 5))
    assert node.servicer._publisher is not None or node.servicer._watchers == set()


async def test_info_config_and_snapshot(node: Node) -> None:
    metrics.counter("node_test_total", "Test", ("kind",)).labels('a"b').inc(3)
    info = await node.stub.GetServerInfo(node_pb2.GetServerInfoRequest())
    assert (info.service, info.version, info.limits["context_limit"]) == ("llm", "1.2", 2048)
    assert abs(info.started_at.seconds - time.time()) < 60
    config = await node.stub.GetConfig(node_pb2.GetConfigRequest())
    assert [(entry.key, entry.value_json, entry.origin) for entry in config.entries] == [
        ("width", "4", "environment"),
        ("token", "", "flag"),
    ]
    snapshot = await node.stub.GetSnapshot(node_pb2.GetSnapshotRequest())
    assert snapshot.counters['antiphon_node_test_total{kind="a\\"b"}'] == 3
    (record,) = snapshot.requests
    assert (record.request_id, record.finish_reason, record.output_count) == ("r1", "stop", 4)
    assert record.phases[0].end.nanos == 250_000_000
    without = await node.stub.GetSnapshot(node_pb2.GetSnapshotRequest(omit_requests=True))
    assert not without.requests


async def test_metrics_are_open_metrics(node: Node) -> None:
    response = await node.stub.GetMetrics(node_pb2.GetMetricsRequest())
    families = {family.name for family in text_string_to_metric_families(response.text.decode())}
    assert "antiphon_grpc_server_handled" in families


async def test_drain_and_undrain(node: Node) -> None:
    node.lifecycle.ready()
    node.measures = NodeMeasures(running=2)
    response = await node.stub.Drain(node_pb2.DrainRequest(reason="test"))
    assert response.running == 2
    with pytest.raises(errors.Unavailable):
        node.lifecycle.require_ready()
    await node.stub.Undrain(node_pb2.UndrainRequest())
    node.lifecycle.require_ready()


async def test_shutdown_replies_then_asks(node: Node) -> None:
    request = node_pb2.ShutdownRequest(reason="test")
    request.grace.seconds = 3
    response = await node.stub.Shutdown(request)
    assert not response.restart_expected
    await asyncio.sleep(0)
    assert node.shutdowns == [3.0]
    request.grace.seconds = -1
    with pytest.raises(errors.InvalidArgument, match="grace"):
        await result(node.stub.Shutdown(request))


async def test_what_a_service_does_not_have_is_unimplemented(node: Node) -> None:
    for call in (
        node.stub.FlushPrefixCache(node_pb2.FlushPrefixCacheRequest(all=True)),
        node.stub.Sleep(node_pb2.SleepRequest()),
        node.stub.Wake(node_pb2.WakeRequest()),
    ):
        with pytest.raises(errors.Unimplemented) as caught:
            await result(call)
        assert caught.value.reason == "UNSUPPORTED"


async def test_stop_request_by_id(node: Node) -> None:
    await node.stub.StopRequest(node_pb2.StopRequestRequest(request_id="r1"))
    assert node.stopped == ["r1"]
    with pytest.raises(errors.NotFound):
        await result(node.stub.StopRequest(node_pb2.StopRequestRequest(request_id="r2")))
    with pytest.raises(errors.InvalidArgument) as caught:
        await result(node.stub.StopRequest(node_pb2.StopRequestRequest()))
    assert caught.value.reason == "MISSING_FIELD"
