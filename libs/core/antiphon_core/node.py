"""The NodeAdminService that every service carries, answered from cached facts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import grpc
from antiphon.admin.v1 import node_pb2
from antiphon.admin.v1.node_pb2_grpc import NodeAdminServiceServicer

from antiphon_core import metrics
from antiphon_core.config import SettingValue
from antiphon_core.errors import InvalidArgument, Unimplemented
from antiphon_core.lifecycle import Lifecycle, LifecycleSnapshot
from antiphon_core.logs import get_logger
from antiphon_core.node_convert import (
    config_message,
    info_message,
    request_message,
    seconds,
    status_message,
)
from antiphon_core.node_types import (
    Flushed,
    NodeMeasures,
    RequestPhase,
    RequestRecord,
    ServerInfo,
)

__all__ = [
    "Flushed",
    "NodeAdminServicer",
    "NodeMeasures",
    "RequestPhase",
    "RequestRecord",
    "ServerInfo",
]

_IDLE_SECONDS = 1.0
_LOADED_SECONDS = 0.1
_KV_STEP = 0.01
"""Share of the KV pool whose taking or freeing is news."""
_WATCHER_BACKLOG = 16
_REQUEST_LIMIT = 4096

log = get_logger("node")


class NodeAdminServicer(NodeAdminServiceServicer):
    """Serves status, info, metrics, configuration and drain of this process.

    The callables are called on the event loop and must not block it, lock an engine or touch a
    device. What is left out answers UNIMPLEMENTED.

    Args:
        lifecycle: state of the process.
        server_info: versions and limits.
        measures: gauges now.
        config: the governing settings, usually ``settings.values``.
        requests: live and recent requests, newest last.
        on_drain: begins a drain; the default takes the lifecycle there.
        on_undrain: ends it.
        on_shutdown: asks the process to drain and exit, with the grace in seconds or None for
            the configured one.
        stop_request: ends one request normally, or raises a typed error.
        answer_request: makes one request end its reasoning, or raises a typed error.
        flush_prefix_cache: forgets one tenant's cached prefixes, or with None all.
        sleep: ends work within so many seconds (None: the service's own limit) and gives memory
            back; returns how many bytes, or raises a typed error.
        wake: undoes it, or raises a typed error.
        supervised: whether something starts this process again after it exits.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        server_info: Callable[[], ServerInfo],
        measures: Callable[[], NodeMeasures] = NodeMeasures,
        *,
        config: Callable[[], Iterable[SettingValue]] = tuple,
        requests: Callable[[], Iterable[RequestRecord]] = tuple,
        on_drain: Callable[[], None] | None = None,
        on_undrain: Callable[[], None] | None = None,
        on_shutdown: Callable[[float | None], None] | None = None,
        stop_request: Callable[[str], Awaitable[None]] | None = None,
        answer_request: Callable[[str], Awaitable[None]] | None = None,
        flush_prefix_cache: Callable[[str | None], Awaitable[Flushed]] | None = None,
        sleep: Callable[[float | None], Awaitable[int]] | None = None,
        wake: Callable[[], Awaitable[None]] | None = None,
        supervised: bool = False,
    ) -> None:
        self._lifecycle = lifecycle
        self._server_info = server_info
        self._measures = measures
        self._config = config
        self._requests = requests
        self._on_drain = on_drain or lifecycle.draining
        self._on_undrain = on_undrain or lifecycle.undrain
        self._on_shutdown = on_shutdown
        self._stop_request = stop_request
        self._answer_request = answer_request
        self._flush_prefix_cache = flush_prefix_cache
        self._sleep = sleep
        self._wake = wake
        self._supervised = supervised
        self._started_at = time.time()
        self._service = ""
        self._sequence = 0
        self._watchers: set[asyncio.Queue[node_pb2.NodeStatus]] = set()
        self._publisher: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def WatchStatus(
        self, request: node_pb2.WatchStatusRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[node_pb2.WatchStatusResponse]:
        """Streams until the caller ends it. A slow reader misses statuses, seen as a gap."""
        queue: asyncio.Queue[node_pb2.NodeStatus] = asyncio.Queue(_WATCHER_BACKLOG)
        self._watchers.add(queue)
        if self._publisher is None:
            self._publisher = asyncio.create_task(self._publish(), name="node-status")
        else:
            self._changed.set()
        try:
            while True:
                yield node_pb2.WatchStatusResponse(status=await queue.get())
        finally:
            self._watchers.discard(queue)
            if not self._watchers and self._publisher is not None:
                self._publisher.cancel()
                self._publisher = None

    async def GetServerInfo(
        self, request: node_pb2.GetServerInfoRequest, context: grpc.aio.ServicerContext
    ) -> node_pb2.GetServerInfoResponse:
        """Versions, build and limits."""
        return info_message(self._server_info(), self._lifecycle.boot_id, self._started_at)

    async def GetSnapshot(
        self, request: node_pb2.GetSnapshotRequest, context: grpc.aio.ServicerContext
    ) -> node_pb2.GetSnapshotResponse:
        """Status, counters and requests of this instant."""
        records = [] if request.omit_requests else list(self._requests())[-_REQUEST_LIMIT:]
        return node_pb2.GetSnapshotResponse(
            status=self._status(self._sequence, self._measures()),
            counters=metrics.counters(),
            requests=[request_message(record) for record in records],
        )

    async def GetMetrics(
        self, request: node_pb2.GetMetricsRequest, context: grpc.aio.ServicerContext
    ) -> node_pb2.GetMetricsResponse:
        """OpenMetrics text."""
        return node_pb2.GetMetricsResponse(text=await asyncio.to_thread(metrics.render))

    async def GetConfig(
        self, request: node_pb2.GetConfigRequest, context: grpc.aio.ServicerContext
    ) -> node_pb2.GetConfigResponse:
        """The governing configuration."""
        return node_pb2.GetConfigResponse(entries=[config_message(row) for row in self._config()])

    async def Drain(
        self, request: node_pb2.DrainRequest, context: grpc.aio.ServicerContext
    ) -> node_pb2.DrainResponse:
        """Refuses new work; running work goes on."""
        log.info("drain_requested", reason=request.reason)
        self._on_drain()
        return node_pb2.DrainResponse(running=self._measures().running or 0)

    async def Undrain(
        self, request: node_pb2.UndrainRequest, context: grpc.aio.ServicerContext
    ) -> node_pb2.UndrainResponse:
        """Takes work again."""
        log.info("undrain_requested")
        self._on_undrain()
        return node_pb2.UndrainResponse()

    async def Shutdown(
        self, request: node_pb2.ShutdownRequest, context: grpc.aio.ServicerContext
    ) -> node_pb2.ShutdownResponse:
        """Replies, then drains and exits."""
        if self._on_shutdown is None:
            raise Unimplemented("this process cannot be shut down by RPC")
        grace = _period(request, "grace")
        log.info("shutdown_requested", reason=request.reason, grace=grace)
        asyncio.get_running_loop().call_soon(self._on_shutdown, grace)
        return node_pb2.ShutdownResponse(restart_expected=self._supervised)

    async def StopRequest(
        self, request: node_pb2.StopRequestRequest, context: grpc.aio.ServicerContext
    ) -> node_pb2.StopRequestResponse:
        """Ends one request normally."""
        _require_request_id(request.request_id)
        if self._stop_request is None:
            raise Unimplemented("requests of this service cannot be stopped by id")
        await self._stop_request(request.request_id)
        return node_pb2.StopRequestResponse()

    async def AnswerNow(
        self, request: node_pb2.AnswerNowRequest, context: grpc.aio.ServicerContext
    ) -> node_pb2.AnswerNowResponse:
        """Ends one request's reasoning."""
        _require_request_id(request.request_id)
        if self._answer_request is None:
            raise Unimplemented("requests of this service do not reason")
        await self._answer_request(request.request_id)
        return node_pb2.AnswerNowResponse()

    async def FlushPrefixCache(
        self, request: node_pb2.FlushPrefixCacheRequest, context: grpc.aio.ServicerContext
    ) -> node_pb2.FlushPrefixCacheResponse:
        """Forgets cached prefixes."""
        scope = request.WhichOneof("scope")
        if scope is None:
            raise InvalidArgument(
                "name a tenant, or set all", reason="MISSING_FIELD", field="scope"
            )
        if scope == "all" and not request.all:
            raise InvalidArgument("all must be true where it is set", field="all")
        if self._flush_prefix_cache is None:
            raise Unimplemented("this service has no prefix cache")
        tenant = request.tenant if scope == "tenant" else None
        flushed = await self._flush_prefix_cache(tenant)
        log.info("prefix_cache_flushed", entries=flushed.entries, all=tenant is None)
        return node_pb2.FlushPrefixCacheResponse(entries=flushed.entries, bytes=flushed.bytes)

    async def Sleep(
        self, request: node_pb2.SleepRequest, context: grpc.aio.ServicerContext
    ) -> node_pb2.SleepResponse:
        """Gives memory back when running work has ended."""
        timeout = _period(request, "timeout")
        if self._sleep is None:
            raise Unimplemented("this service cannot sleep")
        log.info("sleep_requested", timeout=timeout)
        return node_pb2.SleepResponse(released_bytes=await self._sleep(timeout))

    async def Wake(
        self, request: node_pb2.WakeRequest, context: grpc.aio.ServicerContext
    ) -> node_pb2.WakeResponse:
        """Undoes a sleep."""
        if self._wake is None:
            raise Unimplemented("this service cannot sleep")
        log.info("wake_requested")
        await self._wake()
        return node_pb2.WakeResponse()

    async def _publish(self) -> None:
        """One status for all watchers: at once, on each change, and each second."""
        loop = asyncio.get_running_loop()

        def changed(_: LifecycleSnapshot) -> None:
            loop.call_soon_threadsafe(self._changed.set)

        unsubscribe = self._lifecycle.subscribe(changed)
        try:
            while True:
                self._changed.clear()
                measures = self._measures()
                self._sequence += 1
                status = self._status(self._sequence, measures)
                for queue in self._watchers:
                    if not queue.full():
                        queue.put_nowait(status)
                await self._news(measures)
        finally:
            unsubscribe()

    async def _news(self, told: NodeMeasures) -> None:
        """Until a change of state or load is worth a status; a second without any is too.

        A message to every watcher for each token's KV entry would cost as much as the token.
        The looks are bare timer callbacks, because waking a task for each would not be free.
        """
        loop = asyncio.get_running_loop()
        due = loop.time() + _IDLE_SECONDS
        pause = _LOADED_SECONDS if told.loaded else _IDLE_SECONDS

        def look() -> None:
            nonlocal timer
            if loop.time() >= due or _is_news(self._measures(), told):
                self._changed.set()
            else:
                timer = loop.call_at(min(due, loop.time() + pause), look)

        timer = loop.call_later(pause, look)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()

    def _status(self, sequence: int, measures: NodeMeasures) -> node_pb2.NodeStatus:
        # The rest of the facts may be costly to gather, and the name does not change.
        self._service = self._service or self._server_info().service
        return status_message(
            self._service, self._lifecycle.snapshot(), measures, sequence, time.time()
        )


def _period(request: node_pb2.ShutdownRequest | node_pb2.SleepRequest, field: str) -> float | None:
    """A Duration field in seconds, None where it is unset; refuses a negative one."""
    if not request.HasField(field):
        return None
    period = seconds(getattr(request, field))
    if period < 0:
        raise InvalidArgument(f"{field} must not be negative", field=field)
    return period


def _is_news(now: NodeMeasures, told: NodeMeasures) -> bool:
    """Whether a balancer would decide otherwise, or a person see another load."""
    if now.load != told.load:
        return True
    moved = abs((now.kv_entries_used or 0) - (told.kv_entries_used or 0))
    return moved > 0 and moved >= _KV_STEP * (now.kv_entries_total or 0)


def _require_request_id(request_id: str) -> None:
    if not request_id:
        raise InvalidArgument("request_id is required", reason="MISSING_FIELD", field="request_id")
