"""Calls the suite's NodeAdminServices; the only module here that sees generated types."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from antiphon.admin.v1 import node_pb2, node_pb2_grpc
from antiphon_core.errors import AntiphonError
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.streams import messages, open_stream, result

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
    async with _node(target) as stub:
        while True:
            try:
                async with open_stream(stub.WatchStatus(node_pb2.WatchStatusRequest())) as call:
                    async for response in messages(call):
                        yield _status(response.status)
            except AntiphonError:
                await asyncio.sleep(_RETRY_S)


async def flush_prefix_cache(target: str, tenant: str | None) -> tuple[int, int]:
    """Forgets one tenant's cached prefixes, or with None all; entries and bytes that are free.

    Raises:
        AntiphonError: the service cannot, or does not answer; so do ``sleep`` and ``wake``.
    """
    scope: dict[str, Any] = {"all": True} if tenant is None else {"tenant": tenant}
    async with _node(target) as stub:
        request = node_pb2.FlushPrefixCacheRequest(**scope)
        response = await result(stub.FlushPrefixCache(request))
    return response.entries, response.bytes


async def sleep(target: str, timeout: float | None) -> int:
    """Lets running work end within ``timeout`` seconds, then gives memory back; bytes."""
    request = node_pb2.SleepRequest()
    if timeout is not None:
        request.timeout.FromNanoseconds(round(timeout * 1e9))
    async with _node(target) as stub:
        return (await result(stub.Sleep(request))).released_bytes


async def wake(target: str) -> None:
    """Undoes ``sleep``."""
    async with _node(target) as stub:
        await result(stub.Wake(node_pb2.WakeRequest()))


@asynccontextmanager
async def _node(target: str) -> AsyncIterator[Any]:
    channel = open_channel(target)
    try:
        yield node_pb2_grpc.NodeAdminServiceStub(channel)
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
