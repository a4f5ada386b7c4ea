"""Dials NodeAdminService; the stubs are used here only."""

from __future__ import annotations

from collections.abc import AsyncIterator

from antiphon.admin.v1 import node_pb2, node_pb2_grpc
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.streams import messages, open_stream, result

from antiphon_admin.fleet import ReplicaStatus

READ_TIMEOUT_S = 2.0
METRICS_TIMEOUT_S = 10.0
"""Nobody waits for this reading, and a replica whose cores are all at work is not down."""
MUTATION_TIMEOUT_S = 30.0

_READY = (node_pb2.NODE_STATE_READY, node_pb2.NODE_STATE_DEGRADED)


class NodeClient:
    """One replica's NodeAdminService over one channel."""

    def __init__(self, target: str) -> None:
        self._channel = open_channel(target)
        self._stub = node_pb2_grpc.NodeAdminServiceStub(self._channel)

    async def watch(self) -> AsyncIterator[ReplicaStatus]:
        """Statuses until the stream breaks with an AntiphonError."""
        async with open_stream(self._stub.WatchStatus(node_pb2.WatchStatusRequest())) as call:
            async for response in messages(call):
                status = response.status
                yield ReplicaStatus(
                    ready=status.state in _READY,
                    boot_id=status.boot_id,
                    state=node_pb2.NodeState.Name(status.state).removeprefix("NODE_STATE_"),
                    message=status,
                )

    async def metrics(self) -> bytes:
        """The replica's metrics as OpenMetrics text."""
        request = node_pb2.GetMetricsRequest()
        response = await result(self._stub.GetMetrics(request, timeout=METRICS_TIMEOUT_S))
        return response.text

    async def snapshot(self) -> node_pb2.GetSnapshotResponse:
        """The replica's snapshot, recent requests included."""
        request = node_pb2.GetSnapshotRequest()
        return await result(self._stub.GetSnapshot(request, timeout=READ_TIMEOUT_S))

    async def info(self) -> node_pb2.GetServerInfoResponse:
        """The replica's versions and limits."""
        request = node_pb2.GetServerInfoRequest()
        return await result(self._stub.GetServerInfo(request, timeout=READ_TIMEOUT_S))

    async def drain(self, reason: str) -> None:
        """Asks the replica to drain."""
        request = node_pb2.DrainRequest(reason=reason)
        await result(self._stub.Drain(request, timeout=MUTATION_TIMEOUT_S))

    async def undrain(self) -> None:
        """Asks the replica to take work again."""
        request = node_pb2.UndrainRequest()
        await result(self._stub.Undrain(request, timeout=MUTATION_TIMEOUT_S))

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()
