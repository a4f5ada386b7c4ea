"""A gateway on a real port in front of scripted voice backends, and a small client."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from antiphon_core.lifecycle import Lifecycle
from antiphon_gateway.app import Gateway
from antiphon_gateway.clients import Backends
from antiphon_gateway.config import GatewaySettings
from antiphon_gateway.listener import HttpListener
from openai.types.realtime import RealtimeServerEvent
from oracle import Oracle
from pydantic import TypeAdapter
from realtime_fakes import LOUD, ScriptedBackends
from support.waiting import until
from websockets.asyncio.client import ClientConnection, connect

SERVER_EVENT = TypeAdapter(RealtimeServerEvent)
FRAME = 960
"""Bytes of 20 ms of audio."""


class RealtimeGateway:
    """Everything one test needs.

    Args:
        balanced: calls go to the backends as through a balancing proxy.
        settings: of the gateway.
    """

    def __init__(self, *, balanced: bool = False, **settings: Any) -> None:
        self._balanced = balanced
        self.fakes = ScriptedBackends()
        self.script = self.fakes.script
        self.running = self.fakes.running
        self._settings = settings

    async def start(self) -> None:
        """Starts the backends and the gateway and waits until it is ready."""
        target = await self.fakes.start()
        settings = GatewaySettings.model_validate(
            {
                "llm_targets": [target],
                "vocoder_targets": [target],
                "egress_target": target if self._balanced else "",
                **self._settings,
            }
        )
        self.lifecycle = Lifecycle(boot_id="gateway")
        self.backends = Backends(settings)
        self.gateway = Gateway(settings, self.backends, self.lifecycle)
        self.listener = HttpListener(
            self.gateway,
            "127.0.0.1",
            0,
            setting="port",
            grace_seconds=1.0,
        )
        self.port = await self.listener.start()
        self.backends.start()
        self.lifecycle.ready()
        await until(lambda: not self.backends.missing and bool(self.backends.recognizers))

    async def stop(self) -> None:
        """Ends everything."""
        await self.listener.stop()
        await self.backends.close()
        await self.fakes.stop()

    @property
    def url(self) -> str:
        """Base address for HTTP."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def socket_url(self) -> str:
        """Address of the WebSocket."""
        return f"ws://127.0.0.1:{self.port}/v1/realtime"

    @asynccontextmanager
    async def session(self, query: str = "", **options: Any) -> AsyncIterator[Client]:
        """An open session whose whole log the oracle judges."""
        async with connect(self.socket_url + query, max_size=None, **options) as socket:
            client = Client(socket)
            await client.until("conversation.created")
            yield client


class Client:
    """Sends client events; validates and judges every server event."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.events: list[dict[str, Any]] = []
        self.oracle = Oracle()

    async def send(self, kind: str, **fields: Any) -> None:
        """Sends one event."""
        self.oracle.cleared |= kind == "output_audio_buffer.clear"
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def update(self, **change: Any) -> None:
        """session.update, waiting for the answer."""
        await self.send("session.update", session={"type": "realtime", **change})
        await self.until("session.updated")

    async def append(self, audio: bytes) -> None:
        """Appends in frames of 20 ms, as fast as the socket takes them."""
        for start in range(0, len(audio), FRAME):
            encoded = base64.b64encode(audio[start : start + FRAME]).decode()
            await self.send("input_audio_buffer.append", audio=encoded)

    async def speak(self, speech: float = 0.6, silence: float = 0.6) -> None:
        """Says something and falls silent."""
        await self.append(loud(speech) + bytes(int(silence * 24_000) * 2))

    async def say(self, text: str) -> None:
        """Creates a written user item."""
        part = {"type": "input_text", "text": text}
        await self.send(
            "conversation.item.create",
            item={"type": "message", "role": "user", "content": [part]},
        )

    async def receive(self, timeout: float = 30.0) -> dict[str, Any]:
        """The next event."""
        async with asyncio.timeout(timeout):
            event = json.loads(await self.socket.recv())
        SERVER_EVENT.validate_python(event)
        self.oracle.observe(event)
        self.events.append(event)
        return event

    async def until(self, kind: str, timeout: float = 30.0) -> list[dict[str, Any]]:
        """Events up to the first of a type."""
        seen = []
        while not seen or seen[-1]["type"] != kind:
            seen.append(await self.receive(timeout))
        return seen


def loud(seconds: float) -> bytes:
    """Audio that the scripted recogniser takes for speech."""
    return LOUD * int(seconds * 24_000)
