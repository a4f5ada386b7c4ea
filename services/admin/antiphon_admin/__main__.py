"""`python -m antiphon_admin`: the admin service."""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys

from antiphon.admin.v1.admin_service_pb2_grpc import add_AdminServiceServicer_to_server
from antiphon_core.config import settings_from_command_line
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.logs import configure_logging
from antiphon_core.node import NodeAdminServicer, NodeMeasures, ServerInfo
from antiphon_core.rpc.server import RpcServer
from antiphon_core.service import StopPolicy, StopRequest, run_main, run_service

from antiphon_admin.clients import NodeClient
from antiphon_admin.config import AdminSettings
from antiphon_admin.fleet import Fleet, Replica
from antiphon_admin.http import OperationsServer, make_app
from antiphon_admin.servicer import AdminServicer

SERVICE = "admin"


async def serve(settings: AdminSettings) -> int:
    """Runs the service until it is asked to stop; returns the exit status."""
    lifecycle = Lifecycle()
    stop = StopRequest()
    version = importlib.metadata.version("antiphon-admin")
    fleet = Fleet(
        [Replica(name, kind, NodeClient(target)) for name, kind, target in settings.targets()],
        metrics_interval=settings.metrics_interval_s,
    )
    node = NodeAdminServicer(
        lifecycle,
        lambda: ServerInfo(SERVICE, version, config_digest=settings.digest()),
        lambda: NodeMeasures(running=0),
        config=settings.values,
        on_shutdown=stop.ask,
    )
    server = RpcServer(service=SERVICE, bind=settings.bind, lifecycle=lifecycle, node=node)
    server.add(
        add_AdminServiceServicer_to_server,
        AdminServicer(fleet, lifecycle),
        "antiphon.admin.v1.AdminService",
    )
    operations = OperationsServer(make_app(fleet, lifecycle), settings.http_bind)

    async def boot() -> None:
        lifecycle.booting("listen")
        await operations.start()
        await fleet.start()

    async def close() -> None:
        await asyncio.gather(operations.stop(), fleet.stop())

    policy = StopPolicy(drain_grace=settings.drain_grace_s)
    return await run_service(server, boot, close=close, stop=stop, policy=policy, version=version)


def main() -> None:
    """Reads the settings and serves."""
    settings = settings_from_command_line(AdminSettings, section=SERVICE)
    configure_logging(SERVICE)
    sys.exit(run_main(lambda: serve(settings)))


if __name__ == "__main__":
    main()
