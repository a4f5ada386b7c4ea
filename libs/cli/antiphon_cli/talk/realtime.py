"""One speech-to-speech turn over the realtime WebSocket, timed from the last speech sample."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import websockets
from antiphon_core.errors import Unavailable
from websockets.asyncio.client import ClientConnection

from antiphon_cli.talk.audio import (
    REALTIME_RATE,
    Samples,
    end_of_speech,
    from_pcm16,
    to_pcm16,
)

FRAME_SAMPLES = REALTIME_RATE // 50
"""20 ms, sent at the pace of a microphone."""


@dataclass
class Turn:
    """What one turn brought; times in seconds, absent ones are None."""

    transcript: str = ""
    reply: str = ""
    audio: bytearray = field(default_factory=bytearray)
    speech_end_to_stopped: float | None = None
    speech_end_to_transcript: float | None = None
    speech_end_to_first_audio: float | None = None
    status: str = ""

    @property
    def samples(self) -> Samples:
        """The reply's samples at 24 kHz."""
        return from_pcm16(bytes(self.audio))


@asynccontextmanager
async def open_session(
    url: str, session: dict[str, Any] | None = None
) -> AsyncIterator[ClientConnection]:
    """Connects to /v1/realtime of the suite at ``url`` and applies ``session``."""
    address = url.replace("http", "ws", 1) + "/v1/realtime?model=default"
    async with websockets.connect(address, compression=None, max_size=None) as socket:
        await _expect(socket, "session.created")
        if session:
            update = {"type": "session.update", "session": {"type": "realtime", **session}}
            await socket.send(json.dumps(update))
            await _expect(socket, "session.updated")
        yield socket


async def speak_turn(
    socket: ClientConnection,
    samples: Samples,
    *,
    on_event: Callable[[dict[str, Any]], None] = lambda event: None,
) -> Turn:
    """Plays ``samples`` (24 kHz) into the session at real time and collects the reply.

    Silence follows the speech, as from an open microphone, until the response is done.

    Raises:
        Unavailable: when the server reports an error or the response fails.
    """
    sent_at: dict[str, float] = {}
    sender = asyncio.create_task(_send_paced(socket, samples, sent_at))
    try:
        return await _receive_turn(socket, sent_at, on_event)
    finally:
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)


async def _send_paced(
    socket: ClientConnection, samples: Samples, sent_at: dict[str, float]
) -> None:
    data = to_pcm16(samples)
    last_speech_byte = 2 * end_of_speech(samples)
    size = 2 * FRAME_SAMPLES
    silence = bytes(size)
    started = time.perf_counter()
    offset = 0
    while True:
        frame = data[offset : offset + size].ljust(size, b"\0") if offset < len(data) else silence
        message = {"type": "input_audio_buffer.append", "audio": base64.b64encode(frame).decode()}
        await socket.send(json.dumps(message))
        if offset < last_speech_byte <= offset + size:
            sent_at["speech_end"] = time.perf_counter()
        offset += size
        ahead = started + offset / (2 * REALTIME_RATE) - time.perf_counter()
        if ahead > 0:
            await asyncio.sleep(ahead)


async def _receive_turn(
    socket: ClientConnection,
    sent_at: dict[str, float],
    on_event: Callable[[dict[str, Any]], None],
) -> Turn:
    turn = Turn()
    transcript_open = True
    async for message in socket:
        event = json.loads(message)
        on_event(event)
        since = time.perf_counter() - sent_at.get("speech_end", time.perf_counter())
        match event["type"]:
            case "input_audio_buffer.speech_stopped":
                turn.speech_end_to_stopped = since
            case "conversation.item.input_audio_transcription.completed":
                turn.transcript = event["transcript"]
                turn.speech_end_to_transcript = since
                transcript_open = False
            case "response.output_audio.delta":
                if turn.speech_end_to_first_audio is None:
                    turn.speech_end_to_first_audio = since
                turn.audio += base64.b64decode(event["delta"])
            case "response.output_audio_transcript.done":
                turn.reply = event["transcript"]
            case "response.done":
                turn.status = event["response"]["status"]
                if turn.status == "failed":
                    raise Unavailable(f"the response failed: {event['response']['status_details']}")
            case "error":
                raise Unavailable(f"the server reports: {event['error']['message']}")
        if turn.status and not transcript_open:
            return turn
    raise Unavailable("the connection closed before the response was done")


async def _expect(socket: ClientConnection, kind: str) -> dict[str, Any]:
    async for message in socket:
        event = json.loads(message)
        if event["type"] == kind:
            return event
        if event["type"] == "error":
            raise Unavailable(f"the server reports: {event['error']['message']}")
    raise Unavailable(f"the connection closed before {kind}")
