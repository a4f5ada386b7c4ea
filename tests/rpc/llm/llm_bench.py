"""Front, server and client of one test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from antiphon.admin.v1.node_pb2_grpc import NodeAdminServiceStub
from antiphon.llm.v1 import chat_pb2, generate_pb2
from antiphon.llm.v1.llm_service_pb2_grpc import LlmServiceStub, add_LlmServiceServicer_to_server
from antiphon_core.ipc.local import LocalTransport
from antiphon_core.ipc.worker import WorkerProcess
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.node import NodeAdminServicer
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.server import RpcServer
from antiphon_core.rpc.streams import read_all
from antiphon_llm.checkpoint import ModelSource
from antiphon_llm.config import LlmSettings
from antiphon_llm.front.engine_client import WorkerFactory
from antiphon_llm.front.service import LlmFront
from antiphon_llm.messages import Boot, FromEngine, Shutdown, ToEngine
from antiphon_llm.servicer import OPEN_METHODS, SERVICE_NAME, LlmServicer
from scripted_engine import Script, ScriptedEngine

MakeWorker = Callable[[LlmSettings, ModelSource, list[bytes], Sequence[int]], WorkerFactory]


class LlmBench:
    """Everything that a test talks to.

    Args:
        cache: directory for model digests.
        script: behaviour of an engine in a thread; None starts one as a process.
        make_worker: of the real engine, in place of a scripted one.
        settings: of the service.
    """

    def __init__(
        self,
        cache: Path,
        script: Script | None,
        make_worker: MakeWorker | None = None,
        **settings: Any,
    ) -> None:
        self.script = script
        self.settings = LlmSettings(cache_dir=cache, bind="127.0.0.1:0", **settings)
        self.lifecycle = Lifecycle()
        self.front = LlmFront(self.settings, self.lifecycle, make_worker or self._worker)
        self.worker: Any = None

        node = NodeAdminServicer(
            self.lifecycle,
            self.front.server_info,
            self.front.measures,
            config=self.settings.values,
            requests=self.front.records,
            stop_request=self.front.stop_request,
            answer_request=self.front.answer_request,
            flush_prefix_cache=self.front.flush_prefix_cache,
            sleep=self.front.sleep,
            wake=self.front.wake,
        )
        self.server = RpcServer(
            service="llm", bind=self.settings.bind, lifecycle=self.lifecycle, node=node
        )
        servicer = LlmServicer(self.front, self.lifecycle)
        self.server.add(
            add_LlmServiceServicer_to_server, servicer, SERVICE_NAME, open_methods=OPEN_METHODS
        )

    async def start(self) -> None:
        await self.open()
        await self.boot()

    async def open(self) -> None:
        """Serves, not ready."""
        self.port = await self.server.start()
        self.channel = open_channel(f"127.0.0.1:{self.port}")
        self.stub: Any = LlmServiceStub(self.channel)
        self.node: Any = NodeAdminServiceStub(self.channel)

    async def boot(self) -> None:
        """Becomes ready."""
        await self.front.boot()
        self.lifecycle.ready()

    async def stop(self) -> None:
        await self.channel.close()
        await self.server.stop(0.0)
        await self.front.close()

    def _worker(
        self,
        settings: LlmSettings,
        source: ModelSource,
        vocabulary: list[bytes],
        score_ids: Sequence[int],
    ) -> WorkerFactory:
        boot = Boot(settings.engine_config(source.path), score_ids=list(score_ids))

        def make(on_message: Any, on_exit: Any) -> Any:
            if self.script is None:
                self.worker = WorkerProcess(
                    name="scripted",
                    module="scripted_engine",
                    inbound=FromEngine,
                    on_message=on_message,
                    on_exit=on_exit,
                    environment={"PYTHONPATH": str(Path(__file__).parent)},
                    start_message=boot,
                    stop_message=Shutdown(),
                )
            else:
                script = self.script
                self.worker = LocalTransport(
                    lambda endpoint: ScriptedEngine(endpoint, script).run(),
                    worker_inbound=ToEngine,
                    inbound=FromEngine,
                    on_message=on_message,
                    on_exit=on_exit,
                    start_message=boot,
                    stop_message=Shutdown(),
                )
            return self.worker

        return make

    def seen(self, kind: type) -> list[Any]:
        """Messages of this type that the scripted engine got, the readiness request left out."""
        assert self.script is not None
        found = [message for message in self.script.seen if isinstance(message, kind)]
        return [item for item in found if getattr(item, "request_id", "") != "readiness"]

    async def generate(self, request: generate_pb2.GenerateRequest) -> Collected:
        """All of one request's responses."""
        return Collected(await read_all(self.stub.Generate(request)))


class Collected:
    """What a caller makes of a stream of responses."""

    def __init__(self, responses: list[generate_pb2.GenerateResponse]) -> None:
        self.kinds = [response.WhichOneof("event") for response in responses]
        self.accepted = [item.accepted for item in responses if item.HasField("accepted")]
        self.deltas = [item.delta for item in responses if item.HasField("delta")]
        self.finished = {
            item.finished.choice: item.finished for item in responses if item.HasField("finished")
        }
        self.completed = [item.completed for item in responses if item.HasField("completed")]

    def text(self, choice: int = 0) -> str:
        return "".join(delta.text for delta in self.deltas if delta.choice == choice)


def tokens(*ids: int, **fields: Any) -> generate_pb2.GenerateRequest:
    """A request with token ids as prompt."""
    return generate_pb2.GenerateRequest(tokens=generate_pb2.TokenInput(ids=ids), **fields)


def chat(text: str, **fields: Any) -> generate_pb2.GenerateRequest:
    """A request with one user message."""
    part = chat_pb2.ContentPart(text=text)
    message = chat_pb2.ChatMessage(role=chat_pb2.CHAT_ROLE_USER, parts=[part])
    return generate_pb2.GenerateRequest(chat=generate_pb2.ChatInput(messages=[message]), **fields)


def limit(max_tokens: int, **fields: Any) -> generate_pb2.StopParams:
    """Stop rules."""
    return generate_pb2.StopParams(max_tokens=max_tokens, **fields)
