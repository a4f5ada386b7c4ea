"""``python -m antiphon_llm``: the llm service, front process first, engine process below it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from antiphon.llm.v1.llm_service_pb2_grpc import add_LlmServiceServicer_to_server
from antiphon_core import collector
from antiphon_core.config import settings_from_command_line
from antiphon_core.ipc.worker import WorkerProcess
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.logs import configure_logging
from antiphon_core.node import NodeAdminServicer
from antiphon_core.rpc.server import RpcServer
from antiphon_core.service import StopPolicy, StopRequest, run_main, run_service
from antiphon_core.telemetry import configure_tracing

from antiphon_llm.checkpoint import ModelSource, resolve
from antiphon_llm.config import LlmSettings
from antiphon_llm.front.engine_client import WorkerFactory
from antiphon_llm.front.service import LlmFront
from antiphon_llm.messages import Boot, FromEngine, Shutdown
from antiphon_llm.servicer import OPEN_METHODS, SERVICE_NAME, LlmServicer

ENGINE_MODULE = "antiphon_llm.engine"


def engine_worker(
    settings: LlmSettings,
    source: ModelSource,
    vocabulary: list[bytes],
    score_ids: Sequence[int] = (),
) -> WorkerFactory:
    """How to start the engine process of a model."""
    draft_path = None
    if settings.draft_model:
        draft_path = resolve(settings.draft_model, settings.cache_dir).path
    config = settings.engine_config(source.path, draft_path)

    def make(on_message, on_exit):
        return WorkerProcess(
            name="llm-engine",
            module=ENGINE_MODULE,
            inbound=FromEngine,
            on_message=on_message,
            on_exit=on_exit,
            restart_limit=settings.restart_limit,
            start_message=Boot(config, vocabulary, list(score_ids)),
            stop_message=Shutdown(),
        )

    return make


async def serve(settings: LlmSettings) -> int:
    """Runs the service until it is asked to stop; returns the exit status."""
    lifecycle = Lifecycle()
    release = _release()
    stop = StopRequest()
    front = LlmFront(settings, lifecycle, engine_worker, version=release)

    node = NodeAdminServicer(
        lifecycle,
        front.server_info,
        front.measures,
        config=settings.values,
        requests=front.records,
        on_shutdown=stop.ask,
        stop_request=front.stop_request,
        answer_request=front.answer_request,
        flush_prefix_cache=front.flush_prefix_cache,
        sleep=front.sleep,
        wake=front.wake,
        supervised=settings.supervised,
    )
    server = RpcServer(service="llm", bind=settings.bind, lifecycle=lifecycle, node=node)
    server.add(
        add_LlmServiceServicer_to_server,
        LlmServicer(front, lifecycle),
        SERVICE_NAME,
        open_methods=OPEN_METHODS,
    )

    async def boot() -> None:
        await front.boot()
        collector.settle()

    policy = StopPolicy(drain_delay=settings.drain_delay_s, drain_grace=settings.drain_grace_s)
    return await run_service(
        server, boot, close=front.close, stop=stop, policy=policy, version=release
    )


def main() -> int:
    """Reads the configuration and serves."""
    settings = settings_from_command_line(LlmSettings, section="llm")
    configure_logging("llm", settings.log_level, settings.log_console)
    if settings.otlp_endpoint:
        configure_tracing("llm", settings.otlp_endpoint)
    return run_main(lambda: serve(settings))


def _release() -> str:
    try:
        return version("antiphon-llm")
    except PackageNotFoundError:
        return "0.1.0"


if __name__ == "__main__":
    sys.exit(main())
