"""A replica that is llm and vocoder at once, as a process that a test can kill.

``python -m support.replica PORT NAME LOG``: requests say by their prompt what is to happen, and
each execution is a line in LOG, so that a test counts them over all replicas. Answers begin with
NAME. See ``Replica.Generate`` for the prompts.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

from antiphon.llm.v1 import generate_pb2 as gen
from antiphon.llm.v1 import llm_service_pb2 as llm
from antiphon.llm.v1 import llm_service_pb2_grpc
from antiphon.vocoder.v1 import (
    recognition_service_pb2,
    recognition_service_pb2_grpc,
    vocoder_service_pb2,
    vocoder_service_pb2_grpc,
)
from antiphon_core.errors import Internal, NotFound, ResourceExhausted, Unavailable
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.node import NodeAdminServicer, NodeMeasures
from antiphon_core.node_types import ServerInfo
from antiphon_core.rpc.load_reports import add_load_reports
from antiphon_core.rpc.server import RpcServer
from antiphon_core.service import StopPolicy, run_main, run_service

FINISHED = "FINISH_REASON_STOP"


class Replica(llm_service_pb2_grpc.LlmServiceServicer):
    """Answers for one model."""

    def __init__(self, name: str, log: Path, model: str) -> None:
        self._name = name
        self._log = log
        self._model = model

    async def Generate(self, request, context) -> AsyncIterator[gen.GenerateResponse]:
        """``hang`` says nothing for a minute, ``words N`` N words of 20 ms, ``metadata`` what the
        call carries, ``refuse`` that it is full, ``break`` an error, ``lost NAME`` that one replica
        has lost its engine; all else its name at once."""
        if request.model not in ("", self._model):
            raise NotFound(f"no model {request.model}", reason="MODEL_NOT_FOUND")
        prompt = request.text or request.chat.messages[-1].parts[0].text
        with self._log.open("a") as log:
            log.write(f"{self._name} {prompt[:40]}\n")
        if prompt == "refuse":
            raise ResourceExhausted("full", reason="QUEUE_FULL")
        if prompt == "break":
            raise Internal("broken")
        if prompt in (f"lost {self._name}", "lost everywhere"):
            raise Unavailable("lost", reason="WORKER_DIED")
        if prompt == "hang":
            await asyncio.sleep(60)
        yield gen.GenerateResponse(
            accepted=gen.GenerateAccepted(model=self._model, fingerprint="fp", prompt_tokens=1)
        )
        words = [f"[{self._name}]"]
        if prompt == "metadata":
            words += [f"{key}={value} " for key, value in context.invocation_metadata()]
        if prompt.startswith("words "):
            words += ["word "] * int(prompt.split()[1])
        for word in words:
            yield gen.GenerateResponse(delta=gen.GenerateDelta(text=word, token_count=1))
            if len(words) > 1 and prompt != "metadata":
                await asyncio.sleep(0.02)
        yield gen.GenerateResponse(finished=gen.ChoiceFinished(reason=FINISHED))
        yield gen.GenerateResponse(completed=gen.GenerateCompleted())

    async def ListModels(self, request, context) -> llm.ListModelsResponse:
        model = llm.Model(id=self._model, chat=True, context_limit=100_000)
        return llm.ListModelsResponse(models=[model])


class ReplicaVoice(vocoder_service_pb2_grpc.VocoderServiceServicer):
    """Says who it is, and otherwise nothing."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def StreamSpeech(self, requests, context):
        """Silent between the first and the last message, as a call may be for minutes."""
        response = vocoder_service_pb2.StreamSpeechResponse
        async for request in requests:
            if request.HasField("config"):
                yield response(ready=vocoder_service_pb2.SpeechReady())
        yield response(finished=vocoder_service_pb2.SpeechFinished())

    async def ListVoices(self, request, context):
        voice = vocoder_service_pb2.Voice(id=self._name)
        return vocoder_service_pb2.ListVoicesResponse(voices=[voice])


class ReplicaEar(recognition_service_pb2_grpc.RecognitionServiceServicer):
    """Lists one recogniser."""

    async def ListRecognizers(self, request, context):
        ear = recognition_service_pb2.Recognizer(id="ear")
        return recognition_service_pb2.ListRecognizersResponse(recognizers=[ear])


async def serve(arguments: argparse.Namespace) -> int:
    """Runs until SIGTERM, as every service does."""
    lifecycle = Lifecycle(boot_id=f"{arguments.name}-{time.monotonic_ns()}")
    node = NodeAdminServicer(
        lifecycle,
        lambda: ServerInfo("replica", "0"),
        lambda: NodeMeasures(running=0),
    )
    bind = f"127.0.0.1:{arguments.port}"
    server = RpcServer(service="replica", bind=bind, lifecycle=lifecycle, node=node)
    replica = Replica(arguments.name, arguments.log, arguments.model)
    server.add(
        llm_service_pb2_grpc.add_LlmServiceServicer_to_server,
        replica,
        "antiphon.llm.v1.LlmService",
    )
    server.add(
        vocoder_service_pb2_grpc.add_VocoderServiceServicer_to_server,
        ReplicaVoice(arguments.name),
        "antiphon.vocoder.v1.VocoderService",
    )
    server.add(
        recognition_service_pb2_grpc.add_RecognitionServiceServicer_to_server,
        ReplicaEar(),
        "antiphon.vocoder.v1.RecognitionService",
    )
    add_load_reports(server, lambda: {"slot_utilization": arguments.slot_utilization})

    async def boot() -> None:
        lifecycle.booting("listen")

    policy = StopPolicy(drain_delay=arguments.drain_delay, drain_grace=10)
    return await run_service(server, boot, policy=policy)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("name")
    parser.add_argument("log", type=Path)
    parser.add_argument("--model", default="m")
    parser.add_argument("--slot-utilization", type=float, default=0.0)
    parser.add_argument("--drain-delay", type=float, default=0.0)
    given = parser.parse_args()
    raise SystemExit(run_main(lambda: serve(given)))
