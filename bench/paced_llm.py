"""The real llm front over an engine that only keeps time: ``python -m bench.paced_llm PORT``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import uvloop
from antiphon.llm.v1.llm_service_pb2_grpc import add_LlmServiceServicer_to_server
from antiphon_core.ipc.worker import WorkerProcess
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.node import NodeAdminServicer
from antiphon_core.rpc.server import RpcServer
from antiphon_llm.checkpoint import ModelSource
from antiphon_llm.config import LlmSettings
from antiphon_llm.front.engine_client import WorkerFactory
from antiphon_llm.front.service import LlmFront
from antiphon_llm.messages import Boot, FromEngine, Shutdown
from antiphon_llm.servicer import OPEN_METHODS, SERVICE_NAME, LlmServicer

from bench.paced_engine import ROWS


def paced_worker(
    settings: LlmSettings, source: ModelSource, vocabulary: list[bytes], scoring: Sequence[int]
) -> WorkerFactory:
    """How to start the paced engine's process."""

    def make(on_message, on_exit):
        return WorkerProcess(
            name="paced-engine",
            module="bench.paced_engine",
            inbound=FromEngine,
            on_message=on_message,
            on_exit=on_exit,
            start_message=Boot(config=settings.engine_config(source.path)),
            stop_message=Shutdown(),
        )

    return make


async def serve(port: int) -> None:
    """Serves until the process is ended."""
    settings = LlmSettings(bind=f"127.0.0.1:{port}", max_rows=ROWS, queue_limit=4 * ROWS)
    lifecycle = Lifecycle()
    front = LlmFront(settings, lifecycle, paced_worker)
    node = NodeAdminServicer(lifecycle, front.server_info, front.measures)
    server = RpcServer(service="llm", bind=settings.bind, lifecycle=lifecycle, node=node)
    servicer = LlmServicer(front, lifecycle)
    server.add(add_LlmServiceServicer_to_server, servicer, SERVICE_NAME, open_methods=OPEN_METHODS)
    await server.start()
    await front.boot()
    lifecycle.ready()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
