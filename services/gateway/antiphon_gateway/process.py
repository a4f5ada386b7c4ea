"""The gateway process: what it serves, from its boot to its end."""

from __future__ import annotations

import sys

from antiphon_core import collector
from antiphon_core.config import settings_from_command_line
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.logs import configure_logging
from antiphon_core.node import NodeAdminServicer
from antiphon_core.node_types import NodeMeasures, ServerInfo
from antiphon_core.rpc.server import RpcServer
from antiphon_core.service import StopPolicy, StopRequest, run_main, run_service

from antiphon_gateway.app import Gateway
from antiphon_gateway.clients import Backends
from antiphon_gateway.config import GatewaySettings
from antiphon_gateway.listener import HttpListener
from antiphon_gateway.openapi.endpoint import openapi_json
from antiphon_gateway.release import release
from antiphon_gateway.routes.operations import operations_router

_CLOSE_MARGIN_SECONDS = 5.0


async def serve(settings: GatewaySettings) -> int:
    """Serves until asked to stop; returns the exit status."""
    version = release()
    lifecycle = Lifecycle()
    stop = StopRequest()
    backends = Backends(settings)
    gateway = Gateway(settings, backends, lifecycle)
    listeners = _listeners(gateway)

    def measures() -> NodeMeasures:
        return NodeMeasures(
            models=[model.id for model in backends.models], running=gateway.active_requests
        )

    node = NodeAdminServicer(
        lifecycle,
        lambda: ServerInfo("gateway", version, config_digest=settings.digest()),
        measures,
        config=settings.values,
        on_shutdown=stop.ask,
    )
    server = RpcServer(
        service="gateway",
        bind=settings.node_bind,
        lifecycle=lifecycle,
        node=node,
        bind_setting="node_bind",
    )

    async def boot() -> None:
        for listener in listeners:
            await listener.start()
        backends.start()
        gateway.start()
        collector.settle()

    async def close() -> None:
        for listener in listeners:
            await listener.stop()
        await gateway.close()
        await backends.close()

    return await run_service(
        server,
        boot,
        close=close,
        stop=stop,
        policy=StopPolicy(
            drain_delay=settings.drain_notice_seconds,
            close_limit=settings.drain_grace_seconds + _CLOSE_MARGIN_SECONDS,
        ),
        version=version,
    )


def _listeners(gateway: Gateway) -> list[HttpListener]:
    settings = gateway.settings
    grace = settings.drain_grace_seconds
    listeners = [
        HttpListener(gateway, settings.host, settings.port, setting="port", grace_seconds=grace)
    ]
    if settings.ops_port is not None:
        operations = gateway.operations(operations_router())
        listeners.append(
            HttpListener(
                operations,
                settings.ops_host,
                settings.ops_port,
                setting="ops_port",
                grace_seconds=grace,
            )
        )
    return listeners


def main() -> None:
    """Entry point; ``--openapi`` prints the OpenAPI document and ends."""
    if sys.argv[1:] == ["--openapi"]:
        print(openapi_json().decode())
        return
    settings = settings_from_command_line(GatewaySettings, section="gateway")
    configure_logging("gateway", settings.log_level)
    sys.exit(run_main(lambda: serve(settings)))
