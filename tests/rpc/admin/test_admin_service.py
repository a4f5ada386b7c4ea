"""The admin service over real sockets: fleet health, merged metrics, partial failure, drain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import httpx
import pytest
from antiphon.admin.v1 import admin_service_pb2 as pb
from antiphon.admin.v1.admin_service_pb2_grpc import (
    AdminServiceStub,
    add_AdminServiceServicer_to_server,
)
from antiphon_admin.clients import NodeClient
from antiphon_admin.config import AdminSettings
from antiphon_admin.fleet import Fleet, Replica
from antiphon_admin.http import OperationsServer, make_app
from antiphon_admin.metrics_merge import merge
from antiphon_admin.servicer import AdminServicer
from antiphon_core.errors import InvalidArgument, NotFound
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.node import NodeAdminServicer, NodeMeasures, ServerInfo
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.server import RpcServer
from antiphon_core.rpc.streams import result
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from support.waiting import until


@asynccontextmanager
async def node(service: str, *, ready: bool = True) -> AsyncIterator[tuple[str, Lifecycle]]:
    """A real NodeAdminService of a service that does nothing else."""
    lifecycle = Lifecycle()
    servicer = NodeAdminServicer(
        lifecycle, lambda: ServerInfo(service, "1"), lambda: NodeMeasures(slots_total=4)
    )
    server = RpcServer(service=service, bind="127.0.0.1:0", lifecycle=lifecycle, node=servicer)
    port = await server.start()
    lifecycle.booting("weights", 0.5)
    if ready:
        lifecycle.ready()
    try:
        yield f"127.0.0.1:{port}", lifecycle
    finally:
        await server.stop(0.0)


@asynccontextmanager
async def admin(*replicas: tuple[str, str]) -> AsyncIterator[tuple[AdminServiceStub, Fleet]]:
    settings = AdminSettings(replicas=tuple(f"{kind}={target}" for kind, target in replicas))
    fleet = Fleet(
        [Replica(name, kind, NodeClient(target)) for name, kind, target in settings.targets()],
        metrics_interval=0.1,
    )
    lifecycle = Lifecycle()
    server = RpcServer(service="admin", bind="127.0.0.1:0", lifecycle=lifecycle)
    server.add(
        add_AdminServiceServicer_to_server,
        AdminServicer(fleet, lifecycle),
        "antiphon.admin.v1.AdminService",
    )
    port = await server.start()
    lifecycle.ready()
    await fleet.start()
    channel = open_channel(f"127.0.0.1:{port}")
    try:
        yield AdminServiceStub(channel), fleet
    finally:
        await channel.close()
        await server.stop(0.0)
        await fleet.stop()


async def test_the_fleet_is_ready_when_each_service_has_a_ready_replica():
    async with node("llm") as (llm, _), node("vocoder", ready=False) as (vocoder, lifecycle):
        async with admin(("llm", llm), ("vocoder", vocoder)) as (stub, fleet):
            await until(lambda: all(r.status for r in fleet.replicas))
            first = await result(stub.GetFleet(pb.GetFleetRequest()))
            assert not first.ready
            states = {r.id: (r.ready, r.status.phase) for r in first.replicas}
            assert states == {"llm-0": (True, "weights"), "vocoder-0": (False, "weights")}
            lifecycle.ready()
            await until(lambda: fleet.ready)
            assert (await result(stub.GetFleet(pb.GetFleetRequest()))).ready


async def test_a_dead_replica_is_data_and_turns_stale(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("antiphon_admin.fleet.STALE_AFTER_S", 0.3)
    async with node("llm") as (llm, _):
        async with node("vocoder") as (vocoder, _):
            watched = admin(("llm", llm), ("vocoder", vocoder))
            stub, fleet = await watched.__aenter__()
            await until(lambda: fleet.replicas[1].ready)
        try:
            await until(lambda: not fleet.replicas[1].fresh and fleet.replicas[1].error)
            response = await result(stub.GetFleet(pb.GetFleetRequest()))
            dead = response.replicas[1]
            assert (dead.fresh, dead.ready) == (False, False)
            assert dead.error.code == grpc.StatusCode.UNAVAILABLE.value[0]
            assert not response.ready
        finally:
            await watched.__aexit__(None, None, None)


async def test_metrics_of_all_replicas_parse_as_one_document():
    async with node("llm") as (one, _), node("llm") as (two, _):
        async with admin(("llm", one), ("llm", two), ("vocoder", "127.0.0.1:1")) as (stub, fleet):
            await until(lambda: fleet.replicas[0].metrics and fleet.replicas[1].metrics)
            response = await result(stub.GetFleetMetrics(pb.GetFleetMetricsRequest()))
            families = list(text_string_to_metric_families(response.text.decode()))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    up = next(family for family in families if family.name == "antiphon_up")
    assert {s.labels["replica"]: s.value for s in up.samples} == {
        "llm-0": 1.0,
        "llm-1": 1.0,
        "vocoder-0": 0.0,
    }
    handled = next(f for f in families if f.name == "antiphon_grpc_server_handled")
    assert {s.labels["replica"] for s in handled.samples} >= {"llm-0", "llm-1"}


def test_a_malformed_document_hides_only_its_own_replica():
    good = b"# TYPE antiphon_rows gauge\nantiphon_rows 3.0\n# EOF\n"
    text = merge([("llm", "llm-0", good), ("vocoder", "vocoder-0", b"not openmetrics")]).decode()
    assert 'antiphon_rows{replica="llm-0",service="llm"} 3.0' in text
    assert 'antiphon_up{replica="llm-0",service="llm"} 1.0' in text
    assert 'antiphon_up{replica="vocoder-0",service="vocoder"} 0.0' in text


async def test_snapshots_report_a_failing_replica_beside_the_others():
    async with node("llm") as (llm, _):
        async with admin(("llm", llm), ("vocoder", "127.0.0.1:1")) as (stub, _):
            response = await result(stub.GetFleetSnapshot(pb.GetFleetSnapshotRequest()))
    answers = {s.replica_id: s.WhichOneof("result") for s in response.snapshots}
    assert answers == {"llm-0": "snapshot", "vocoder-0": "error"}


async def test_drain_reaches_the_replica_and_needs_a_selector():
    async with node("llm") as (llm, lifecycle), admin(("llm", llm)) as (stub, _):
        with pytest.raises(InvalidArgument) as refused:
            await result(stub.DrainReplicas(pb.DrainReplicasRequest(reason="test")))
        assert refused.value.field == "selector"
        selector = pb.ReplicaSelector(replica_ids=["llm-0"])
        await result(stub.DrainReplicas(pb.DrainReplicasRequest(selector=selector)))
        assert lifecycle.state.name == "DRAINING"
        await result(stub.UndrainReplicas(pb.UndrainReplicasRequest(selector=selector)))
        assert lifecycle.is_ready


async def test_an_unknown_replica_is_refused_with_the_known_ones():
    async with admin(("llm", "127.0.0.1:1")) as (stub, _):
        selector = pb.ReplicaSelector(replica_ids=["llm-9"])
        with pytest.raises(NotFound) as refused:
            await result(stub.GetFleetInfo(pb.GetFleetInfoRequest(selector=selector)))
        assert refused.value.metadata["allowed"] == "llm-0"


async def test_the_operations_port_answers_probes_and_prometheus():
    async with node("llm") as (llm, lifecycle), admin(("llm", llm)) as (_, fleet):
        await until(lambda: fleet.ready and fleet.replicas[0].metrics)
        transport = httpx.ASGITransport(make_app(fleet, lifecycle))
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/health/ready")).json() == {"ready": True, "not_ready": []}
            snapshot = (await client.get("/snapshot")).json()
            assert snapshot["replicas"][0]["status"]["slots_total"] == "4"
            metrics = await client.get("/metrics")
            assert "antiphon_up" in metrics.text
            assert metrics.headers["content-type"].startswith("application/openmetrics-text")


async def test_a_taken_operations_port_names_the_setting():
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    operations = OperationsServer(
        make_app(Fleet([], metrics_interval=1), Lifecycle()), f"127.0.0.1:{port}"
    )
    with pytest.raises(Exception, match=rf"{port}.*--http-bind"):
        await operations.start()
    server.close()


@pytest.mark.parametrize("replica", ["llm", "llm=", "=host:1", "llm=host"])
def test_a_malformed_replica_is_named(replica: str):
    with pytest.raises(ValueError, match="service=host:port"):
        AdminSettings(replicas=(replica,))
