"""A grpc.aio server with health, reflection, node admin and a drain that loses nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from antiphon_core.errors import FailedPrecondition
from antiphon_core.lifecycle import Lifecycle, LifecycleSnapshot
from antiphon_core.logs import get_logger
from antiphon_core.rpc.calls import CallTracker
from antiphon_core.rpc.interceptors import ServiceInterceptor
from antiphon_core.rpc.options import SERVER_OPTIONS

if TYPE_CHECKING:
    from antiphon_core.node import NodeAdminServicer

LIVE = "live"
READY = "ready"
HEALTH_SERVICE = "grpc.health.v1.Health"
NODE_SERVICE = "antiphon.admin.v1.NodeAdminService"

_LAST_TERMINALS_SECONDS = 2.0
_CLOSE_SECONDS = 0.1
log = get_logger("rpc.server")


class RpcServer:
    """Serves added services, health (``""``, ``live``, ``ready``, each service) and reflection.

    Args:
        service: name of the process, such as ``llm``.
        bind: ``host:port`` (port 0 picks a free one) or ``unix:path``.
        lifecycle: governs readiness and admission.
        node: the NodeAdminService to carry; it answers in every state.
        bind_setting: the setting that holds ``bind``, for the message about a port in use.
    """

    def __init__(
        self,
        *,
        service: str,
        bind: str,
        lifecycle: Lifecycle,
        node: NodeAdminServicer | None = None,
        bind_setting: str = "bind",
    ) -> None:
        self.service = service
        self.lifecycle = lifecycle
        self.calls = CallTracker()
        self._bind = bind
        self._bind_setting = bind_setting
        self._interceptor = ServiceInterceptor(lifecycle, self.calls)
        self._server = grpc.aio.server(interceptors=(self._interceptor,), options=SERVER_OPTIONS)
        self._health = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue]
        self._service_names: list[str] = []
        self._gated_names: list[str] = []
        self._node = node
        self._started = False
        self._health_wanted = asyncio.Event()
        self._health_task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None

    def add(
        self,
        add_to_server: Callable[[Any, Any], None],
        servicer: object,
        service_name: str,
        *,
        gated: bool = True,
        open_methods: Sequence[str] = (),
    ) -> None:
        """Adds a service; before ``start``.

        Args:
            add_to_server: the generated ``add_XServicer_to_server``.
            servicer: its servicer.
            service_name: full name, such as ``antiphon.llm.v1.LlmService``.
            gated: whether calls are refused unless the lifecycle is ready.
            open_methods: methods of a gated service that answer in every state.

        Raises:
            FailedPrecondition: the server has started.
        """
        if self._started:
            raise FailedPrecondition(f"{service_name} must be added before the server starts")
        add_to_server(servicer, self._server)
        self._service_names.append(service_name)
        if gated:
            self._interceptor.gate(service_name, open_methods)
            self._gated_names.append(service_name)

    async def start(self) -> int:
        """Binds and serves; returns the port (0 for a Unix socket).

        Calls are answered from now on: health and node admin in full, others with
        UNAVAILABLE until the lifecycle is ready.

        Raises:
            FailedPrecondition: the address cannot be bound; the message says how to change it.
        """
        if self._node is not None:
            self._add_node(self._node)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*self._service_names, HEALTH_SERVICE, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self._started = True
        # Asked first, because gRPC's own failure does not say why and writes to stderr.
        number = 0 if self._bind.startswith("unix:") else _bind_errno(self._bind)
        if number:
            raise self._bind_error(number)
        try:
            port = self._server.add_insecure_port(self._bind)
        except RuntimeError as error:
            raise self._bind_error(0) from error
        await self._publish_health()
        self._watch_lifecycle()
        await self._server.start()
        log.info("rpc_server_started", bind=self._bind, port=port)
        return 0 if self._bind.startswith("unix:") else port

    async def stop(self, grace: float) -> None:
        """Refuses new work, waits ``grace`` seconds for running calls, ends the rest, closes.

        A call that is ended gets UNAVAILABLE with reason DRAINING.
        """
        self.calls.closed = True
        if not await self.calls.wait_idle(grace):
            ended = self.calls.end_all()
            log.warning("calls_ended_at_stop", count=ended, grace=grace)
            await self.calls.wait_idle(_LAST_TERMINALS_SECONDS)
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self._health_task is not None:
            self._health_task.cancel()
            await asyncio.gather(self._health_task, return_exceptions=True)
        await self._server.stop(_CLOSE_SECONDS)

    def _add_node(self, node: NodeAdminServicer) -> None:
        from antiphon.admin.v1.node_pb2_grpc import add_NodeAdminServiceServicer_to_server

        add_NodeAdminServiceServicer_to_server(node, self._server)
        self._service_names.append(NODE_SERVICE)

    def _watch_lifecycle(self) -> None:
        """Changes may come from any thread; one task publishes the newest."""
        loop = asyncio.get_running_loop()

        def changed(_: LifecycleSnapshot) -> None:
            loop.call_soon_threadsafe(self._health_wanted.set)

        self._unsubscribe = self.lifecycle.subscribe(changed)
        self._health_task = asyncio.create_task(self._follow_health(), name="health")

    async def _follow_health(self) -> None:
        while True:
            await self._health_wanted.wait()
            self._health_wanted.clear()
            await self._publish_health()

    async def _publish_health(self) -> None:
        live = _serving(self.lifecycle.is_live)
        ready = _serving(self.lifecycle.is_ready)
        await self._health.set(LIVE, live)
        for name in ("", READY, *self._gated_names):
            await self._health.set(name, ready)
        for name in set(self._service_names) - set(self._gated_names):
            await self._health.set(name, live)

    def _bind_error(self, number: int) -> FailedPrecondition:
        host, _, port = self._bind.rpartition(":")
        name = self._bind_setting
        cure = (
            f"choose another with --{name.replace('_', '-')} or the key {name} in [{self.service}]"
        )
        if number == errno.EADDRINUSE:
            problem = f"port {port} on {host} is already in use"
        else:
            problem = f"cannot listen on {self._bind}"
            problem += f": {os.strerror(number)}" if number else ""
        return FailedPrecondition(f"{problem}; {cure}", field=name)


def _serving(good: bool) -> health_pb2.HealthCheckResponse.ServingStatus:
    status = health_pb2.HealthCheckResponse
    return status.SERVING if good else status.NOT_SERVING


def _bind_errno(bind: str) -> int:
    """Why ``host:port`` cannot be bound; 0 when it can."""
    host, _, port = bind.rpartition(":")
    try:
        address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(address[0], address[1]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address[4])
    except socket.gaierror:
        return errno.EADDRNOTAVAIL
    except OSError as error:
        return error.errno or errno.EINVAL
    except (ValueError, OverflowError):
        return errno.EINVAL
    return 0
