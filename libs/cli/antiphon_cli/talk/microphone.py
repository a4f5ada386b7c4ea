"""A spoken conversation through the sound card; needs the optional package sounddevice."""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import threading
from typing import Any

from antiphon_core.errors import FailedPrecondition
from rich.console import Console
from websockets.asyncio.client import ClientConnection

from antiphon_cli.talk.audio import REALTIME_RATE
from antiphon_cli.talk.realtime import FRAME_SAMPLES, open_session


class Playback:
    """Bytes that wait for the sound card; the card's thread reads, the loop writes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending = bytearray()

    def write(self, data: bytes) -> None:
        """Appends PCM to play."""
        with self._lock:
            self._pending += data

    def clear(self) -> None:
        """Drops what has not been played: the user speaks."""
        with self._lock:
            self._pending.clear()

    def fill(self, output: Any, *_: object) -> None:
        """The sound card's callback: the next bytes, then silence."""
        with self._lock:
            data = bytes(self._pending[: len(output)])
            del self._pending[: len(output)]
        output[:] = data.ljust(len(output), b"\0")


async def converse(url: str, session: dict[str, Any] | None, console: Console) -> None:
    """Runs until Ctrl-C.

    Raises:
        FailedPrecondition: when sounddevice or an audio device is missing.
    """
    device = _sound_device()
    loop = asyncio.get_running_loop()
    captured: asyncio.Queue[bytes] = asyncio.Queue(maxsize=500)
    playback = Playback()

    def capture(data: Any, *_: object) -> None:
        loop.call_soon_threadsafe(_put, captured, bytes(data))

    stream = {
        "samplerate": REALTIME_RATE,
        "blocksize": FRAME_SAMPLES,
        "channels": 1,
        "dtype": "int16",
    }
    try:
        source = device.RawInputStream(callback=capture, **stream)
        sink = device.RawOutputStream(callback=playback.fill, **stream)
    except device.PortAudioError as error:
        raise FailedPrecondition(
            f"no usable microphone or loudspeaker ({error}); give a WAV file instead"
        ) from None
    async with open_session(url, session) as socket:
        console.print("speak; Ctrl-C ends the conversation")
        with source, sink:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_send(socket, captured))
                tasks.create_task(_receive(socket, playback, console))


def _put(queue: asyncio.Queue[bytes], data: bytes) -> None:
    if not queue.full():
        queue.put_nowait(data)


def _sound_device() -> Any:
    try:
        return importlib.import_module("sounddevice")
    except (ImportError, OSError) as error:
        raise FailedPrecondition(
            f"the microphone needs the package sounddevice and PortAudio ({error}): "
            "pip install 'antiphon-cli[microphone]', or give a WAV file"
        ) from None


async def _send(socket: ClientConnection, captured: asyncio.Queue[bytes]) -> None:
    while True:
        frame = base64.b64encode(await captured.get()).decode()
        await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": frame}))


async def _receive(socket: ClientConnection, playback: Playback, console: Console) -> None:
    async for message in socket:
        event = json.loads(message)
        match event["type"]:
            case "input_audio_buffer.speech_started":
                playback.clear()
            case "response.output_audio.delta":
                playback.write(base64.b64decode(event["delta"]))
            case "conversation.item.input_audio_transcription.completed":
                console.print(f"[bold]you[/bold]   {event['transcript'].strip()}", highlight=False)
            case "response.output_audio_transcript.done":
                console.print(f"[bold]model[/bold] {event['transcript'].strip()}", highlight=False)
            case "error":
                console.print(f"[red]{event['error']['message']}[/red]")
