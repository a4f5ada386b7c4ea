"""A WebSocket over one h2 stream (RFC 8441), as little of it as a test of a proxy needs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import h2.config
import h2.connection
import h2.events
import h2.settings
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, Event, Protocol


class WebSocketOverHttp2:
    """An open socket: ``send`` and ``receive`` text."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        connection: h2.connection.H2Connection,
        stream: int,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._connection = connection
        self._stream = stream
        self._protocol = Protocol(CLIENT)
        self._frames: deque[Event] = deque()
        """Received together with one that was wanted before them."""

    async def send(self, text: str) -> None:
        """One text message."""
        self._protocol.send_text(text.encode())
        for data in self._protocol.data_to_send():
            self._connection.send_data(self._stream, data)
        await self._flush()

    async def receive(self) -> str:
        """The next text message."""
        while True:
            self._frames.extend(self._protocol.events_received())
            while self._frames:
                frame = self._frames.popleft()
                if isinstance(frame, Frame) and frame.opcode is Opcode.TEXT:
                    return bytes(frame.data).decode()
            for event in await self.events():
                if isinstance(event, h2.events.DataReceived):
                    self._protocol.receive_data(event.data)
                    self._connection.acknowledge_received_data(
                        event.flow_controlled_length, self._stream
                    )
            await self._flush()

    async def events(self) -> list[h2.events.Event]:
        """What the connection brings next.

        Raises:
            ConnectionError: nothing any more.
        """
        data = await self._reader.read(65536)
        if not data:
            raise ConnectionError("the proxy closed the connection")
        return self._connection.receive_data(data)

    async def _flush(self) -> None:
        self._writer.write(self._connection.data_to_send())
        await self._writer.drain()


@asynccontextmanager
async def websocket_over_http2(
    port: int, path: str, headers: Mapping[str, str]
) -> AsyncIterator[WebSocketOverHttp2]:
    """Opens a socket by extended CONNECT, for the block.

    Raises:
        AssertionError: the proxy does not offer it, or refuses.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    connection.initiate_connection()
    socket = WebSocketOverHttp2(reader, writer, connection, 1)
    await socket._flush()
    offered: dict[int, int] = {}
    while not offered:
        for event in await socket.events():
            if isinstance(event, h2.events.RemoteSettingsChanged):
                offered = {
                    int(code): item.new_value for code, item in event.changed_settings.items()
                }
    assert offered[h2.settings.SettingCodes.ENABLE_CONNECT_PROTOCOL] == 1
    connection.send_headers(
        1,
        [
            *((":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http")),
            *((":path", path), (":authority", f"127.0.0.1:{port}")),
            ("sec-websocket-version", "13"),
            *headers.items(),
        ],
    )
    await socket._flush()
    answered = False
    while not answered:
        for event in await socket.events():
            if isinstance(event, h2.events.ResponseReceived):
                status = dict(event.headers)[b":status"]
                assert status == b"200", status
                answered = True
            if isinstance(event, h2.events.DataReceived):
                socket._protocol.receive_data(event.data)
    try:
        yield socket
    finally:
        writer.close()
