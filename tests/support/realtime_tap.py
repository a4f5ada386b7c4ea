"""A relay between a realtime client and the suite: keeps every frame, and may cut the line.

What the client receives is what the oracle judges, whatever the client itself shows of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oracle import Oracle
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

_PASSED_ON = ("authorization", "openai-beta", "user-agent")
_RESERVED_CLOSE = 1005


@dataclass
class Line:
    """One connection: events both ways, in order."""

    sent: list[dict[str, Any]] = field(default_factory=list)
    """Of the client, appended audio left out."""
    appended: int = 0
    received: list[dict[str, Any]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    """Types of events in both directions; the client's begin with ``>``."""

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Received events of a type."""
        return [event for event in self.received if event["type"] == kind]

    def sent_of(self, kind: str) -> list[dict[str, Any]]:
        """The client's events of a type."""
        return [event for event in self.sent if event["type"] == kind]

    def check(self) -> None:
        """The oracle has nothing against what the client received."""
        oracle = Oracle()
        oracle.cleared = bool(self.sent_of("output_audio_buffer.clear"))
        for event in self.received:
            oracle.observe(event)


@dataclass
class Tap:
    """Listens on ``port``; ``lines`` grows with each connection."""

    target: str
    port: int = 0
    lines: list[Line] = field(default_factory=list)
    cut_after: str = ""
    """The type of a client event behind which the first line is cut, without a closing frame."""

    @property
    def url(self) -> str:
        """HTTP address of the suite behind the tap."""
        return f"http://127.0.0.1:{self.port}"

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Received events of a type, on any line."""
        return [event for line in self.lines for event in line.of(kind)]

    def sent_of(self, kind: str) -> list[dict[str, Any]]:
        """Clients' events of a type, on any line."""
        return [event for line in self.lines for event in line.sent_of(kind)]

    async def serve(self, client: ServerConnection) -> None:
        """Relays one connection until either side ends it."""
        request = client.request
        assert request is not None
        headers = {
            name: value for name, value in request.headers.raw_items() if name.lower() in _PASSED_ON
        }
        offered = [
            Subprotocol(name.strip())
            for value in request.headers.get_all("Sec-WebSocket-Protocol")
            for name in value.split(",")
        ]
        line = Line()
        self.lines.append(line)
        cuts = self.cut_after if len(self.lines) == 1 else ""
        async with connect(
            f"{self.target}{request.path}",
            additional_headers=headers,
            subprotocols=offered or None,
            compression=None,
            max_size=None,
        ) as server:
            ways = [
                asyncio.create_task(self._up(client, server, line, cuts)),
                asyncio.create_task(self._down(client, server, line)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _up(self, client: Any, server: Any, line: Line, cut_after: str) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for message in client:
                await server.send(message)
                event = json.loads(message)
                if event["type"] == "input_audio_buffer.append":
                    line.appended += 1
                    continue
                line.sent.append(event)
                line.kinds.append(f">{event['type']}")
                if event["type"] == cut_after:
                    client.transport.abort()
                    return
        await server.close()

    async def _down(self, client: Any, server: Any, line: Line) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for message in server:
                event = json.loads(message)
                line.received.append(event)
                line.kinds.append(event["type"])
                await client.send(message)
        code = server.close_code or _RESERVED_CLOSE
        await client.close(1000 if code == _RESERVED_CLOSE else code, server.close_reason or "")


def _choose(_client: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """As the suite does: ``realtime`` where it is offered."""
    return next((name for name in offered if name == "realtime"), None)


@contextlib.asynccontextmanager
async def tapped(
    url: str, cut_after: str = "", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Tap]:
    """A tap in front of the suite at ``url`` (http://...), which speaks TLS where told to."""
    tap = Tap(url.replace("http", "ws", 1), cut_after=cut_after)
    async with serve(
        tap.serve,
        "127.0.0.1",
        0,
        select_subprotocol=_choose,
        compression=None,
        max_size=None,
        ssl=tls,
    ) as server:
        tap.port = server.sockets[0].getsockname()[1]
        yield tap


def self_signed(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A certificate for this machine's loopback address, and the file that clients trust."""
    certificate, key = folder / "tap.pem", folder / "tap.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context, certificate
