"""Reads the status of the suite's services; the only module here that sees generated types."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
from antiphon.admin.v1 import node_pb2, node_pb2_grpc
from antiphon_core.errors import AntiphonError
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.streams import messages, open_stream

_READY = (node_pb2.NODE_STATE_READY, node_pb2.NODE_STATE_DEGRADED)
_RETRY_S = 0.1


@dataclass(frozen=True)
class ServiceStatus:
    """What one service says about its start."""

    ready: bool
    failed: bool
    phase: str
    fraction: float
    reason: str


async def watch_node(target: str) -> AsyncIterator[ServiceStatus]:
    """Statuses of one service, reconnecting for as long as the caller iterates."""
    channel = open_channel(target)
    try:
        stub = node_pb2_grpc.NodeAdminServiceStub(channel)
        while True:
            try:
                async with open_stream(stub.WatchStatus(node_pb2.WatchStatusRequest())) as call:
                    async for response in messages(call):
                        yield _status(response.status)
            except AntiphonError:
                await asyncio.sleep(_RETRY_S)
    finally:
        await channel.close()


def _status(status: node_pb2.NodeStatus) -> ServiceStatus:
    return ServiceStatus(
        ready=status.state in _READY,
        failed=status.state == node_pb2.NODE_STATE_FAILED,
        phase=status.phase,
        fraction=status.phase_fraction,
        reason=status.reason_text,
    )


async def wait_http_ready(url: str) -> None:
    """Waits until a URL answers 200, for as long as the caller waits."""
    async with httpx.AsyncClient(timeout=2.0) as client:
        while True:
            try:
                if (await client.get(url)).status_code == httpx.codes.OK:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(_RETRY_S)
