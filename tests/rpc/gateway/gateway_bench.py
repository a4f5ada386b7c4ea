"""A gateway on a real port in front of fake backends."""

from __future__ import annotations

import json

import httpx
from antiphon_core.lifecycle import Lifecycle
from antiphon_gateway.app import Gateway
from antiphon_gateway.clients import Backends
from antiphon_gateway.config import GatewaySettings
from antiphon_gateway.listener import HttpListener
from fake_backends import FakeBackends
from support.waiting import until


class GatewayBench:
    """Everything one test needs: ``http`` is a client whose base is the gateway.

    Args:
        balanced: calls go through ``egress_target``, one RPC a generation, as before a proxy.
        settings: of the gateway, beside its targets.
    """

    def __init__(self, *, balanced: bool = False, **settings: object) -> None:
        self.fakes = FakeBackends()
        self._balanced = balanced
        self._settings = settings

    async def start(self, *, backends: bool = True, ready: bool = True) -> None:
        if backends:
            await self.fakes.start(ready=ready)
        self.settings = GatewaySettings.model_validate(
            {
                "llm_targets": [self.fakes.target],
                "vocoder_targets": [self.fakes.target],
                "egress_target": self.fakes.target if self._balanced else "",
                **self._settings,
            }
        )
        self.lifecycle = Lifecycle(boot_id="gateway")
        self.backends = Backends(self.settings)
        self.gateway = Gateway(self.settings, self.backends, self.lifecycle)
        self.listener = HttpListener(
            self.gateway, "127.0.0.1", 0, setting="port", grace_seconds=1.0
        )
        self.port = await self.listener.start()
        self.lifecycle.ready()
        self.backends.start()
        self.gateway.start()
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.AsyncClient(base_url=self.url, timeout=20.0)
        if backends and ready:
            await until(lambda: not self.backends.missing)
            await until(lambda: bool(self.backends.recognizers))

    async def stop(self) -> None:
        await self.http.aclose()
        await self.listener.stop()
        await self.gateway.close()
        await self.backends.close()
        await self.fakes.stop()

    async def chat(self, **fields: object) -> httpx.Response:
        body = {"model": "small", "messages": [{"role": "user", "content": "Hi"}], **fields}
        return await self.http.post("/v1/chat/completions", json=body)


def events_of(text: str) -> list:
    """The data of an event stream; ``[DONE]`` stays a string, comments are left out."""
    found = []
    for block in text.split("\n\n"):
        if block.startswith("data: "):
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found
