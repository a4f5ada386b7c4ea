"""ORCA: a service tells its balancer how full it is, beside its calls.

Trailers would tell it too, but a stream that lasts minutes has no trailer until it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc
from xds.data.orca.v3.orca_load_report_pb2 import OrcaLoadReport
from xds.service.orca.v3 import orca_pb2_grpc
from xds.service.orca.v3.orca_pb2 import OrcaLoadReportRequest

from antiphon_core.rpc.server import RpcServer

SERVICE_NAME = "xds.service.orca.v3.OpenRcaService"

LEAST_UTILIZATION = 0.01
"""Balancers divide by the utilisation and leave out a report of none."""

_DEFAULT_SECONDS = 1.0
_LEAST_SECONDS = 0.1


class LoadReportServicer(orca_pb2_grpc.OpenRcaServiceServicer):
    """Reports what ``measure`` returns, at the pace that the balancer asks for.

    Args:
        measure: utilisation by name, 0 to 1; called on the event loop for each report. The
            largest is the application's, all of them are named metrics.
    """

    def __init__(self, measure: Callable[[], Mapping[str, float]]) -> None:
        self._measure = measure

    async def StreamCoreMetrics(
        self, request: OrcaLoadReportRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[OrcaLoadReport]:
        """See the proto."""
        asked = request.report_interval
        seconds = asked.seconds + asked.nanos / 1e9
        interval = max(_LEAST_SECONDS, seconds) if seconds > 0 else _DEFAULT_SECONDS
        while True:
            yield report_of(self._measure())
            await asyncio.sleep(interval)


def report_of(utilizations: Mapping[str, float]) -> OrcaLoadReport:
    """The report of these utilisations.

    A weighted round robin gives each server the weight rate / utilisation. The rate here is
    always 1: with the true one an idle server, which has none, would get no calls.
    """
    floored = {name: max(LEAST_UTILIZATION, value) for name, value in utilizations.items()}
    return OrcaLoadReport(
        rps_fractional=1.0,
        named_metrics=floored,
        application_utilization=max(floored.values(), default=LEAST_UTILIZATION),
    )


def add_load_reports(server: RpcServer, measure: Callable[[], Mapping[str, float]]) -> None:
    """Adds the service to a server that has not started; it answers in every state.

    Args:
        server: gets the service.
        measure: see ``LoadReportServicer``.
    """
    add: Callable[[Any, Any], None] = orca_pb2_grpc.add_OpenRcaServiceServicer_to_server
    server.add(add, LoadReportServicer(measure), SERVICE_NAME, gated=False)
