"""ORCA reports over a real socket, also before the service is ready."""

from __future__ import annotations

import time

from antiphon_core.lifecycle import Lifecycle
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.load_reports import LEAST_UTILIZATION, add_load_reports
from antiphon_core.rpc.server import RpcServer
from google.protobuf.duration_pb2 import Duration
from xds.service.orca.v3.orca_pb2 import OrcaLoadReportRequest
from xds.service.orca.v3.orca_pb2_grpc import OpenRcaServiceStub


async def test_reports_follow_the_load_at_the_asked_pace() -> None:
    used = {"slot_utilization": 0.0}
    server = RpcServer(service="stub", bind="127.0.0.1:0", lifecycle=Lifecycle())
    add_load_reports(server, lambda: used)
    port = await server.start()
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            asked = OrcaLoadReportRequest(report_interval=Duration(nanos=150_000_000))
            call = OpenRcaServiceStub(channel).StreamCoreMetrics(asked)
            started = time.monotonic()
            first = await call.read()
            used["slot_utilization"] = 0.75
            second = await call.read()
            assert time.monotonic() - started >= 0.14
            # On a busy machine one more may have been made before its client had the first.
            while second.named_metrics["slot_utilization"] < 0.75:
                second = await call.read()
            call.cancel()
    finally:
        await server.stop(0.0)
    assert dict(first.named_metrics) == {"slot_utilization": LEAST_UTILIZATION}
    assert dict(second.named_metrics) == {"slot_utilization": 0.75}
    assert second.application_utilization == 0.75
    assert first.rps_fractional > 0, "Envoy leaves out a report without a rate"


async def test_a_report_flood_is_not_served() -> None:
    """An interval of next to nothing is one of a tenth of a second."""
    server = RpcServer(service="stub", bind="127.0.0.1:0", lifecycle=Lifecycle())
    add_load_reports(server, lambda: {"slot_utilization": 0.5})
    port = await server.start()
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            asked = OrcaLoadReportRequest(report_interval=Duration(nanos=1))
            call = OpenRcaServiceStub(channel).StreamCoreMetrics(asked)
            started = time.monotonic()
            for _ in range(3):
                await call.read()
            assert time.monotonic() - started >= 0.18
            call.cancel()
    finally:
        await server.stop(0.0)
