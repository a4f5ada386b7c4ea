"""AdminService over the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

import grpc
from antiphon.admin.v1 import admin_service_pb2 as pb
from antiphon.admin.v1 import admin_service_pb2_grpc
from antiphon_core.errors import AntiphonError
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.logs import get_logger
from antiphon_core.rpc.errors import to_status

from antiphon_admin.clients import NodeClient
from antiphon_admin.convert import replica_message
from antiphon_admin.fleet import Fleet, Replica
from antiphon_admin.metrics_merge import merge

log = get_logger("admin.servicer")

WATCH_INTERVAL_S = 1.0

Answer = TypeVar("Answer")


class AdminServicer(admin_service_pb2_grpc.AdminServiceServicer):
    """Answers from the fleet's memory; snapshots and mutations ask the replicas at once."""

    def __init__(self, fleet: Fleet, lifecycle: Lifecycle) -> None:
        self._fleet = fleet
        self._lifecycle = lifecycle

    async def GetFleet(
        self, request: pb.GetFleetRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetFleetResponse:
        """See the proto."""
        response = pb.GetFleetResponse(replicas=self._replicas(), ready=self._fleet.ready)
        response.at.GetCurrentTime()
        return response

    async def WatchFleet(
        self, request: pb.WatchFleetRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.WatchFleetResponse]:
        """See the proto."""
        async for _ in self._fleet.changes(WATCH_INTERVAL_S):
            yield pb.WatchFleetResponse(replicas=self._replicas(), ready=self._fleet.ready)
            if not self._lifecycle.is_ready:
                return  # a watch never holds up a drain

    async def GetFleetSnapshot(
        self, request: pb.GetFleetSnapshotRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetFleetSnapshotResponse:
        """See the proto."""
        rows = await self._ask(self._selected(request.selector), NodeClient.snapshot)
        return pb.GetFleetSnapshotResponse(
            snapshots=[
                pb.ReplicaSnapshot(replica_id=name, error=to_status(answer))
                if isinstance(answer, AntiphonError)
                else pb.ReplicaSnapshot(replica_id=name, snapshot=answer)
                for name, answer in rows
            ]
        )

    async def GetFleetInfo(
        self, request: pb.GetFleetInfoRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetFleetInfoResponse:
        """See the proto."""
        rows = await self._ask(self._selected(request.selector), NodeClient.info)
        return pb.GetFleetInfoResponse(
            infos=[
                pb.ReplicaInfo(replica_id=name, error=to_status(answer))
                if isinstance(answer, AntiphonError)
                else pb.ReplicaInfo(replica_id=name, info=answer)
                for name, answer in rows
            ]
        )

    async def GetFleetMetrics(
        self, request: pb.GetFleetMetricsRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetFleetMetricsResponse:
        """See the proto."""
        text = await asyncio.to_thread(merge, self._fleet.metrics_documents())
        return pb.GetFleetMetricsResponse(text=text)

    async def DrainReplicas(
        self, request: pb.DrainReplicasRequest, context: grpc.aio.ServicerContext
    ) -> pb.DrainReplicasResponse:
        """See the proto."""
        replicas = self._named(request.selector)
        log.warning("drain", replicas=[r.id for r in replicas], reason=request.reason)
        rows = await self._ask(replicas, lambda client: client.drain(request.reason))
        return pb.DrainReplicasResponse(results=_results(rows))

    async def UndrainReplicas(
        self, request: pb.UndrainReplicasRequest, context: grpc.aio.ServicerContext
    ) -> pb.UndrainReplicasResponse:
        """See the proto."""
        replicas = self._named(request.selector)
        log.warning("undrain", replicas=[r.id for r in replicas])
        rows = await self._ask(replicas, NodeClient.undrain)
        return pb.UndrainReplicasResponse(results=_results(rows))

    def _replicas(self) -> list[pb.Replica]:
        return [replica_message(replica) for replica in self._fleet.replicas]

    def _selected(self, selector: pb.ReplicaSelector) -> list[Replica]:
        return self._fleet.select(selector.replica_ids, selector.services)

    def _named(self, selector: pb.ReplicaSelector) -> list[Replica]:
        return self._fleet.select_named(selector.replica_ids, selector.services)

    async def _ask(
        self, replicas: Sequence[Replica], ask: Callable[[NodeClient], Awaitable[Answer]]
    ) -> list[tuple[str, Answer | AntiphonError]]:
        """All replicas at once; a failing one is its error."""

        async def one(replica: Replica) -> Answer | AntiphonError:
            assert isinstance(replica.client, NodeClient)
            try:
                return await ask(replica.client)
            except AntiphonError as error:
                return error

        answers = await asyncio.gather(*map(one, replicas))
        return [(replica.id, answer) for replica, answer in zip(replicas, answers, strict=True)]


def _results(rows: Sequence[tuple[str, AntiphonError | None]]) -> list[pb.ReplicaResult]:
    return [
        pb.ReplicaResult(replica_id=name, error=to_status(error) if error else None)
        for name, error in rows
    ]
