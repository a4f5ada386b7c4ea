"""The operations port: Prometheus, probes and a JSON snapshot of the fleet."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import uvicorn
from antiphon_core.errors import FailedPrecondition
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.metrics import CONTENT_TYPE
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from antiphon_admin.convert import replicas_json
from antiphon_admin.fleet import Fleet
from antiphon_admin.metrics_merge import merge


def make_app(fleet: Fleet, lifecycle: Lifecycle) -> Starlette:
    """The ASGI application; every answer comes from the fleet's memory."""

    async def metrics(request: Request) -> Response:
        text = await asyncio.to_thread(merge, fleet.metrics_documents())
        return Response(text, media_type=CONTENT_TYPE)

    async def health(request: Request) -> Response:
        return JSONResponse({"live": lifecycle.is_live}, 200 if lifecycle.is_live else 503)

    async def ready(request: Request) -> Response:
        missing = sorted({r.id for r in fleet.replicas if not r.ready})
        body = {"ready": fleet.ready, "not_ready": missing}
        return JSONResponse(body, 200 if fleet.ready else 503)

    async def snapshot(request: Request) -> Response:
        return JSONResponse({"ready": fleet.ready, "replicas": replicas_json(fleet.replicas)})

    return Starlette(
        routes=[
            Route("/metrics", metrics),
            Route("/health", health),
            Route("/health/ready", ready),
            Route("/snapshot", snapshot),
        ]
    )


class OperationsServer:
    """Serves an ASGI application on ``host:port`` inside the running event loop."""

    def __init__(self, app: Starlette, bind: str) -> None:
        self._bind = bind
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
        self._server = _QuietServer(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Binds and serves.

        Raises:
            FailedPrecondition: when the address cannot be bound, naming the setting.
        """
        host, _, port = self._bind.rpartition(":")
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host.strip("[]"), int(port)))
        except OSError as error:
            listener.close()
            raise FailedPrecondition(
                f"cannot listen on {self._bind}: {error.strerror}; choose another with "
                "--http-bind or the key http_bind in [admin]",
                field="http_bind",
            ) from None
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))

    async def stop(self) -> None:
        """Ends the connections and the listener."""
        self._server.should_exit = True
        self._server.force_exit = True
        if self._task is not None:
            await self._task


class _QuietServer(uvicorn.Server):
    """Leaves the process's signals to the service that runs it."""

    @contextlib.contextmanager
    def capture_signals(self):
        yield
