"""The services of a spoken answer in one process, their engines in processes of their own."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from antiphon.admin.v1 import node_pb2
from antiphon.admin.v1.node_pb2_grpc import NodeAdminServiceStub
from antiphon.llm.v1 import chat_pb2, generate_pb2
from antiphon.llm.v1.llm_service_pb2_grpc import LlmServiceStub
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.streams import result
from antiphon_gateway.app import Gateway
from antiphon_gateway.clients import Backends
from antiphon_gateway.config import GatewaySettings
from antiphon_gateway.listener import HttpListener
from support.speech_model import CODEBOOKS
from support.waiting import until
from transformers import MimiModel

from bench.service import service_process

AUDIO = (generate_pb2.MODALITY_TEXT, generate_pb2.MODALITY_AUDIO)


@dataclass
class OmniBench:
    """Running services; ``url`` is the gateway's."""

    url: str
    llm: Any
    """Stub of LlmService."""
    nodes: list[Any]
    """Stubs of both services' NodeAdminService."""
    backends: Backends
    codec: MimiModel
    vocoder_pid: int

    @classmethod
    @asynccontextmanager
    async def running(
        cls, root: Path, model: Path, codec_path: Path, codec: MimiModel
    ) -> AsyncIterator[OmniBench]:
        async with AsyncExitStack() as stack:
            llm_process = service_process(
                "antiphon_llm",
                root / "llm.log",
                *("--model", str(model), "--threads", "1", "--max-rows", "4"),
                *("--cache-dir", str(root), "--drain-delay-s", "0"),
            )
            vocoder_process = service_process(
                "antiphon_vocoder",
                root / "vocoder.log",
                *("--codecs", f"small={codec_path}", "--codec-slots", "4"),
                *("--codec-rungs", "4", "--codec-threads", "1", "--drain-delay-s", "0"),
            )
            (_, llm), (process, vocoder) = await asyncio.gather(
                stack.enter_async_context(llm_process),
                stack.enter_async_context(vocoder_process),
            )
            settings = GatewaySettings.model_validate(
                {"llm_targets": [llm], "vocoder_targets": [vocoder]}
            )
            backends = Backends(settings)
            gateway = Gateway(settings, backends, Lifecycle(boot_id="gateway"))
            listener = HttpListener(gateway, "127.0.0.1", 0, setting="port", grace_seconds=1.0)
            port = await listener.start()
            gateway.lifecycle.ready()
            backends.start()
            gateway.start()
            channels = [open_channel(llm), open_channel(vocoder)]
            try:
                await until(lambda: not backends.missing)
                nodes = [NodeAdminServiceStub(channel) for channel in channels]
                stub = LlmServiceStub(channels[0])
                url = f"http://127.0.0.1:{port}"
                yield cls(url, stub, nodes, backends, codec, process.pid)
            finally:
                for channel in channels:
                    await channel.close()
                await listener.stop()
                await gateway.close()
                await backends.close()

    def decoded(self, codes: Sequence[int]) -> np.ndarray:
        """What transformers makes of frames of codes, as int16 samples."""
        frames = torch.tensor(codes).reshape(-1, CODEBOOKS).T[None]
        with torch.no_grad():
            samples = self.codec.decode(frames)[0][0, 0].numpy()
        return np.clip(samples * 32767, -32768, 32767)

    async def chat(self, **fields: Any) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as http:
            return await http.post("/v1/chat/completions", json=body(**fields))

    async def held(self) -> int:
        """Rows and slots that requests hold in both services."""
        replies = [
            await result(node.GetSnapshot(node_pb2.GetSnapshotRequest())) for node in self.nodes
        ]
        return sum(reply.status.running + reply.status.waiting for reply in replies)


def body(**fields: Any) -> dict[str, Any]:
    """A request for a spoken answer."""
    return {
        "model": "talker",
        "messages": [{"role": "user", "content": "red sky"}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "alloy", "format": "pcm16"},
        **fields,
    }


def samples_of(pieces: Sequence[str]) -> np.ndarray:
    return np.frombuffer(b"".join(map(base64.b64decode, pieces)), "<i2")


def chat_generation(**fields: Any) -> generate_pb2.GenerateRequest:
    """What the gateway makes of ``body``."""
    part = chat_pb2.ContentPart(text="red sky")
    message = chat_pb2.ChatMessage(role=chat_pb2.CHAT_ROLE_USER, parts=[part])
    return generate_pb2.GenerateRequest(chat=generate_pb2.ChatInput(messages=[message]), **fields)
