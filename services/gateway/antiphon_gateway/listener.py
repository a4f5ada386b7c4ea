"""One HTTP listener: uvicorn inside a loop and a life that are not its own."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from antiphon_core.errors import FailedPrecondition
from antiphon_core.logs import get_logger

from antiphon_gateway.middleware.request import App
from antiphon_gateway.websocket import WebSocketProtocol

_WEBSOCKET_MESSAGE_BYTES = 20 * 1024 * 1024
_KEEP_ALIVE_SECONDS = 75
_BACKLOG = 2048

log = get_logger(__name__)


class _Server(uvicorn.Server):
    """Signals belong to the service that runs the listener."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpListener:
    """Binds at ``start``; ``stop`` ends accepting, then waits for running requests.

    Args:
        app: what answers.
        host: address to bind.
        port: port to bind; 0 takes a free one.
        setting: name of the port's setting, for the message about a port in use.
        grace_seconds: for running requests at ``stop``.
    """

    def __init__(
        self, app: App, host: str, port: int, *, setting: str, grace_seconds: float
    ) -> None:
        self._host = host
        self._port = port
        self._setting = setting
        self._task: asyncio.Task[None] | None = None
        self._server = _Server(
            uvicorn.Config(
                app,
                loop="none",
                http="httptools",
                ws=WebSocketProtocol,
                ws_per_message_deflate=False,
                ws_max_size=_WEBSOCKET_MESSAGE_BYTES,
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=max(1, round(grace_seconds)),
            )
        )

    async def start(self) -> int:
        """Binds and accepts; returns the port.

        Raises:
            FailedPrecondition: the address cannot be bound; the message says how to change it.
        """
        listening = self._bind()
        port = listening.getsockname()[1]
        self._task = asyncio.create_task(
            self._server.serve(sockets=[listening]), name=f"http-{port}"
        )
        await self._server.accepting.wait()
        log.info("http_listening", host=self._host, port=port)
        return port

    async def stop(self) -> None:
        """Ends accepting and waits for running requests, at most the grace."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((self._host, self._port))
            listening.listen(_BACKLOG)
        except OSError as error:
            listening.close()
            problem = (
                f"port {self._port} on {self._host} is already in use"
                if error.errno == errno.EADDRINUSE
                else f"cannot listen on {self._host}:{self._port}: {os.strerror(error.errno or 0)}"
            )
            flag = self._setting.replace("_", "-")
            raise FailedPrecondition(
                f"{problem}; choose another with --{flag} or the key {self._setting} in [gateway]",
                field=self._setting,
            ) from None
        listening.setblocking(False)
        return listening
