"""Backends without models: real gRPC servers whose answers a test scripts."""

from __future__ import annotations

import time
from collections.abc import Callable

from antiphon.llm.v1 import llm_service_pb2_grpc
from antiphon.vocoder.v1 import recognition_service_pb2_grpc, vocoder_service_pb2_grpc
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.node import NodeAdminServicer
from antiphon_core.node_types import ServerInfo
from antiphon_core.rpc.server import RpcServer
from fake_llm import WORDS, FakeLlm, LlmScript
from fake_speech import FakeRecognition, FakeVocoder, RecognitionScript, SpeechScript

__all__ = ["WORDS", "FakeBackends", "LlmScript", "RecognitionScript", "SpeechScript"]


class FakeBackends:
    """One server that is llm, vocoder and recogniser at once."""

    def __init__(self) -> None:
        self.llm = FakeLlm()
        self.vocoder = FakeVocoder()
        self.recognition = FakeRecognition()
        self.lifecycle = Lifecycle(boot_id=f"boot-{time.monotonic_ns()}")
        self.port = 0
        self.limits: dict[str, int] = {}
        """What GetServerInfo advertises."""
        self._server: RpcServer | None = None

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self, *, ready: bool = True) -> None:
        node = NodeAdminServicer(
            self.lifecycle, lambda: ServerInfo("fake", "0", limits=self.limits)
        )
        server = RpcServer(
            service="fake", bind=f"127.0.0.1:{self.port}", lifecycle=self.lifecycle, node=node
        )
        added: tuple[tuple[Callable, object, str], ...] = (
            (
                llm_service_pb2_grpc.add_LlmServiceServicer_to_server,
                self.llm,
                "antiphon.llm.v1.LlmService",
            ),
            (
                vocoder_service_pb2_grpc.add_VocoderServiceServicer_to_server,
                self.vocoder,
                "antiphon.vocoder.v1.VocoderService",
            ),
            (
                recognition_service_pb2_grpc.add_RecognitionServiceServicer_to_server,
                self.recognition,
                "antiphon.vocoder.v1.RecognitionService",
            ),
        )
        for add, servicer, name in added:
            server.add(add, servicer, name)
        self._server = server
        self.lifecycle.booting("loading")
        self.port = await server.start()
        if ready:
            self.lifecycle.ready()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0.0)
