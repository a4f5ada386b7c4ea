"""A TCP connection that a test can reset."""

from __future__ import annotations

import asyncio
import contextlib


class Wire:
    """A connection to a port that can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ends: list[asyncio.StreamWriter] = []

    async def start(self) -> int:
        """Listens; returns the port."""
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Resets both ends."""
        self._server.close()
        for end in self._ends:
            end.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._ends += [writer, back]

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(65536):
                    sink.write(data)

        await asyncio.gather(copy(reader, back), copy(there, writer))
