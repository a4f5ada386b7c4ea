"""The speech recognition service."""

from __future__ import annotations

from typing import Any

import grpc.aio
from antiphon.vocoder.v1 import recognition_service_pb2, recognition_service_pb2_grpc
from antiphon_core.rpc.streams import result

from antiphon_gateway.clients.stream import TwoWayStream
from antiphon_gateway.convert import recognition as convert
from antiphon_gateway.domain.recognition import (
    FileEvent,
    FileFinished,
    RecognitionConfig,
    RecognitionEvent,
    RecognitionFinished,
    Recognizer,
    TurnDetection,
)
from antiphon_gateway.quota.metering import recognition_metered

AUDIO_PIECE_BYTES = 256 * 1024
"""Audio a message; the contract allows 1 MiB."""


class RecognitionStream(TwoWayStream[RecognitionEvent]):
    """Live audio in; turn events, partial and final text out; RecognitionFinished last."""

    def __init__(self, call: Any, config: RecognitionConfig) -> None:
        observe = recognition_metered(convert.live_response_to_event, config.model)
        super().__init__(call, observe, RecognitionFinished)
        self._config = config

    async def __aenter__(self) -> RecognitionStream:
        await self._write(convert.live_config_to_proto(self._config))
        return self

    async def send_audio(self, data: bytes) -> None:
        """Appends audio in the configured format; any cut is right."""
        for start in range(0, len(data), AUDIO_PIECE_BYTES):
            await self._write(convert.live_audio_to_proto(data[start : start + AUDIO_PIECE_BYTES]))

    async def flush(self, tag: str = "") -> None:
        """Ends the present utterance; the tag comes back in its final or error."""
        await self._write(convert.flush_to_proto(tag))

    async def reset(self) -> None:
        """Drops the present utterance and all turn state."""
        await self._write(convert.reset_to_proto())

    async def set_turn_detection(self, detection: TurnDetection) -> None:
        """Changes turn detection from here on."""
        await self._write(convert.turn_detection_to_proto(detection))


class FileRecognitionStream(TwoWayStream[FileEvent]):
    """A file in any container in; segments in time order and FileFinished out."""

    def __init__(self, call: Any, config: RecognitionConfig) -> None:
        observe = recognition_metered(convert.file_response_to_event, config.model)
        super().__init__(call, observe, FileFinished)
        self._config = config

    async def __aenter__(self) -> FileRecognitionStream:
        await self._write(convert.file_config_to_proto(self._config))
        return self

    async def send_bytes(self, data: bytes) -> None:
        """Appends bytes of the file."""
        for start in range(0, len(data), AUDIO_PIECE_BYTES):
            await self._write(convert.file_audio_to_proto(data[start : start + AUDIO_PIECE_BYTES]))


class RecognitionClient:
    """One recognition service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = recognition_service_pb2_grpc.RecognitionServiceStub(channel)

    def stream(self, config: RecognitionConfig) -> RecognitionStream:
        """Opens live recognition; the configuration is sent on entering it."""
        return RecognitionStream(self._stub.StreamingRecognize(timeout=config.timeout), config)

    def recognize(self, config: RecognitionConfig) -> FileRecognitionStream:
        """Opens file recognition; the configuration is sent on entering it."""
        return FileRecognitionStream(self._stub.Recognize(timeout=config.timeout), config)

    async def list_recognizers(self) -> tuple[Recognizer, ...]:
        """Recognisers, the default first."""
        response = await result(
            self._stub.ListRecognizers(
                recognition_service_pb2.ListRecognizersRequest(), timeout=2.0
            )
        )
        return tuple(convert.recognizer_from_proto(item) for item in response.recognizers)
