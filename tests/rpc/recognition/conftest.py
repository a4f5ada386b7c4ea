"""One recognition server with its real worker for all tests of this directory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from antiphon.vocoder.v1 import recognition_service_pb2_grpc as pb_grpc
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.server import RpcServer
from antiphon_vocoder.recognition.config import RecognitionSettings
from antiphon_vocoder.recognition.service import RecognitionRuntime

SERVICE = "antiphon.vocoder.v1.RecognitionService"
LIMITS: dict[str, Any] = {"stream_idle_seconds": 20.0, "max_file_seconds": 120.0}
"""Settings of every server here."""


class RecognitionServer:
    """Runs on an event loop in a thread of its own, so that every test's loop can call it."""

    def __init__(self, settings: RecognitionSettings) -> None:
        self.lifecycle = Lifecycle()
        self.runtime = RecognitionRuntime(settings)
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(90)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _start(self) -> None:
        await self.runtime.start(self.lifecycle)
        self.lifecycle.ready()
        self._server = RpcServer(service="vocoder", bind="127.0.0.1:0", lifecycle=self.lifecycle)
        self._server.add(
            pb_grpc.add_RecognitionServiceServicer_to_server, self.runtime.servicer, SERVICE
        )
        self.port = await self._server.start()

    async def _stop(self) -> None:
        await self._server.stop(0.0)
        await self.runtime.stop(5.0)


@contextmanager
def served(settings: RecognitionSettings) -> Iterator[RecognitionServer]:
    """A server for the block."""
    server = RecognitionServer(settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@asynccontextmanager
async def stub_of(server: RecognitionServer) -> AsyncIterator[pb_grpc.RecognitionServiceStub]:
    """Calls of the server on the running loop."""
    channel = open_channel(f"127.0.0.1:{server.port}")
    try:
        yield pb_grpc.RecognitionServiceStub(channel)
    finally:
        await channel.close()


@pytest.fixture(scope="session")
def recognition_server() -> Iterator[RecognitionServer]:
    with served(RecognitionSettings(**LIMITS)) as server:
        yield server


@pytest.fixture
async def stub(
    recognition_server: RecognitionServer,
) -> AsyncIterator[pb_grpc.RecognitionServiceStub]:
    async with stub_of(recognition_server) as made:
        yield made
