"""``python -m antiphon_vocoder``: synthesis and recognition on one gRPC port."""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys

from antiphon.vocoder.v1.recognition_service_pb2_grpc import (
    add_RecognitionServiceServicer_to_server,
)
from antiphon.vocoder.v1.vocoder_service_pb2_grpc import add_VocoderServiceServicer_to_server
from antiphon_core import collector
from antiphon_core.config import settings_from_command_line
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.logs import configure_logging
from antiphon_core.node import NodeAdminServicer, NodeMeasures, ServerInfo
from antiphon_core.rpc.load_reports import add_load_reports
from antiphon_core.rpc.server import RpcServer
from antiphon_core.service import StopPolicy, StopRequest, run_main, run_service

from antiphon_vocoder import __version__
from antiphon_vocoder.config import VocoderSettings
from antiphon_vocoder.recognition.service import RecognitionRuntime
from antiphon_vocoder.runtime import SpeechRuntime
from antiphon_vocoder.servicer import VocoderService
from antiphon_vocoder.voices import load_catalog

SERVICE = "vocoder"
_WORKER_GRACE_SECONDS = 3.0
_LIBRARIES = ("onnxruntime", "av", "espeakng-loader", "ctranslate2")


async def serve(settings: VocoderSettings) -> int:
    """Runs the service until it is asked to stop; returns the exit status.

    Raises:
        AntiphonError: a voice or a worker is not as it must be.
    """
    lifecycle = Lifecycle()
    stop = StopRequest()
    catalog = await asyncio.to_thread(load_catalog, settings.voices_dir, settings.default_voice)
    speech = SpeechRuntime(settings, catalog, lifecycle)
    recognition = RecognitionRuntime(settings.recognition)
    node = NodeAdminServicer(
        lifecycle,
        lambda: _server_info(settings),
        lambda: _measures(speech, recognition),
        config=settings.values,
        on_shutdown=stop.ask,
    )
    server = RpcServer(service=SERVICE, bind=settings.bind, lifecycle=lifecycle, node=node)
    server.add(
        add_VocoderServiceServicer_to_server,
        VocoderService(speech),
        "antiphon.vocoder.v1.VocoderService",
    )
    server.add(
        add_RecognitionServiceServicer_to_server,
        recognition.servicer,
        "antiphon.vocoder.v1.RecognitionService",
    )

    add_load_reports(server, speech.utilizations)

    async def boot() -> None:
        lifecycle.booting("speech")
        await asyncio.gather(speech.start(), recognition.start(lifecycle))
        collector.settle()

    async def close() -> None:
        await asyncio.gather(
            speech.stop(_WORKER_GRACE_SECONDS), recognition.stop(_WORKER_GRACE_SECONDS)
        )

    policy = StopPolicy(drain_delay=settings.drain_delay_s, drain_grace=settings.drain_grace_s)
    return await run_service(
        server, boot, close=close, stop=stop, policy=policy, version=__version__
    )


def _server_info(settings: VocoderSettings) -> ServerInfo:
    return ServerInfo(
        SERVICE,
        __version__,
        config_digest=settings.digest(),
        device=settings.device if settings.codecs else "cpu",
        limits={"slots": settings.slot_count, "queue": settings.queue_count},
        libraries={name: importlib.metadata.version(name) for name in _LIBRARIES},
    )


def _measures(speech: SpeechRuntime, recognition: RecognitionRuntime) -> NodeMeasures:
    pools = speech.pools.values()
    busy = sum(pool.busy for pool in pools)
    return NodeMeasures(
        models=[*(voice.id for voice in speech.catalog.voices), *speech.codec.catalog.codecs],
        slots_used=busy,
        slots_total=sum(pool.total for pool in pools),
        running=busy,
        waiting=sum(pool.queued for pool in pools),
        resident_bytes=speech.resident_bytes,
        worker_restarts=speech.worker_restarts + recognition.restarts,
    )


def main() -> None:
    """Reads the settings and serves."""
    settings = settings_from_command_line(VocoderSettings, section=SERVICE)
    configure_logging(SERVICE, settings.log_level, settings.log_console)
    sys.exit(run_main(lambda: serve(settings)))


if __name__ == "__main__":
    main()
