"""A live recognition on a call of its own: for a channel to a balancing proxy."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Any

from antiphon_core.errors import AntiphonError
from antiphon_core.logs import get_logger
from antiphon_core.rpc.streams import end_writes, write

from antiphon_gateway.clients.stream import BackendStream
from antiphon_gateway.convert import recognition as convert
from antiphon_gateway.domain.recognition import (
    RecognitionConfig,
    RecognitionEvent,
    RecognitionFinished,
    TurnDetection,
)
from antiphon_gateway.quota.metering import recognition_metered

AUDIO_PIECE_BYTES = 256 * 1024
"""Audio a message; the contract allows 1 MiB."""

log = get_logger(__name__)


class SingleRecognition(BackendStream[RecognitionEvent]):
    """Used as every RecognitionStream is; a task of its own writes what it is told.

    Args:
        call: StreamingRecognize.
        config: sent on entering.
    """

    def __init__(self, call: Any, config: RecognitionConfig) -> None:
        observe = recognition_metered(convert.live_response_to_event, config.model)
        super().__init__(call, observe, RecognitionFinished)
        self._config = config
        self._waiting: deque[Any] = deque()
        """Audio, requests that are not audio, and None for the end of the input."""
        self._filled = asyncio.Event()
        self._room = asyncio.Event()
        self.queued_bytes = 0
        """Audio that waits to be written."""
        self._writer: asyncio.Task[None] | None = None

    async def _enter(self) -> None:
        await write(self._call, convert.live_config_to_proto(self._config))
        self._writer = asyncio.create_task(self._write_all())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await super().__aexit__(kind, error, traceback)
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)

    def send_audio(self, data: bytes) -> None:
        """Appends audio in the configured format; any cut is right."""
        self.queued_bytes += len(data)
        self._put(data)

    def flush(self, tag: str = "") -> None:
        """Ends the present utterance; the tag comes back in its final or error."""
        self._put(convert.flush_to_proto(tag))

    def reset(self) -> None:
        """Drops the present utterance and all turn state."""
        self._put(convert.reset_to_proto())

    def set_turn_detection(self, detection: TurnDetection) -> None:
        """Changes turn detection from here on."""
        self._put(convert.turn_detection_to_proto(detection))

    def end_input(self) -> None:
        """No more input follows."""
        self._put(None)

    async def room(self, limit: int) -> None:
        """Waits until at most ``limit`` bytes of audio wait, or the stream is over."""
        while self.queued_bytes > limit and self._writer is not None and not self._writer.done():
            self._room.clear()
            await self._room.wait()

    def _put(self, message: Any) -> None:
        self._waiting.append(message)
        self._filled.set()

    async def _write_all(self) -> None:
        try:
            while True:
                await self._filled.wait()
                self._filled.clear()
                while self._waiting:
                    await self._write_next()
        except AntiphonError as error:
            # The reader of the same call sees the same failure and raises it.
            log.debug("recognizer_write_failed", reason=error.reason)
        finally:
            self._room.set()

    async def _write_next(self) -> None:
        waiting = self._waiting
        message = waiting.popleft()
        if message is None:
            await end_writes(self._call)
        elif not isinstance(message, bytes):
            await write(self._call, message)
        else:
            # Appends that wait together leave as one.
            pieces = [message]
            while waiting and isinstance(waiting[0], bytes):
                pieces.append(waiting.popleft())
            data = message if len(pieces) == 1 else b"".join(pieces)
            for start in range(0, len(data), AUDIO_PIECE_BYTES):
                piece = data[start : start + AUDIO_PIECE_BYTES]
                await write(self._call, convert.live_audio_to_proto(piece))
                self.queued_bytes -= len(piece)
                self._room.set()
