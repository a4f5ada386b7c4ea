"""An HTTP/1.1 server of few words, for what is asked of a proxy alone."""

from __future__ import annotations

import asyncio
import contextlib
import time

FRAMES = 40
FRAME_S = 0.02
SILENT_S = 2.0
"""Before the answer of /v1/silent."""


class PlainServer:
    """Echoes, streams frames with the time of their write, and refuses when it is told to."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.refuses = False
        """Whether requests are refused as not begun."""
        self.refused = 0
        self.served = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                path = head.split(" ", 2)[1]
                length = 0
                for line in head.split("\r\n"):
                    if line.startswith("content-length:"):
                        length = int(line.split(":")[1])
                body = await reader.readexactly(length)
                await self._answer(writer, path, body)
                await writer.drain()
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, path: str, body: bytes) -> None:
        if path.startswith("/health"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        elif self.refuses:
            self.refused += 1
            writer.write(
                b"HTTP/1.1 503 No\r\nx-antiphon-not-started: 1\r\ncontent-length: 0\r\n\r\n"
            )
        elif path == "/v1/frames":
            await self._frames(writer)
        else:
            self.served += 1
            if path == "/v1/silent":
                await asyncio.sleep(SILENT_S)
            status = b"503 Full" if path == "/v1/overloaded" else b"200 OK"
            writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body)

    async def _frames(self, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for _ in range(FRAMES):
            await asyncio.sleep(FRAME_S)
            frame = f"data: {time.monotonic():.6f}\n\n".encode()
            writer.write(b"%x\r\n" % len(frame) + frame + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
