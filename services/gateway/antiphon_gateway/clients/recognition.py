"""The speech recognition service."""

from __future__ import annotations

from typing import Any, Protocol

import grpc.aio
from antiphon.vocoder.v1 import recognition_service_pb2, recognition_service_pb2_grpc
from antiphon_core.rpc.streams import result

from antiphon_gateway.clients.live_recognition import AUDIO_PIECE_BYTES, SingleRecognition
from antiphon_gateway.clients.recognition_multiplex import RecognitionMultiplexer
from antiphon_gateway.clients.stream import EventStream, TwoWayStream
from antiphon_gateway.convert import recognition as convert
from antiphon_gateway.domain.recognition import (
    FileEvent,
    FileFinished,
    RecognitionConfig,
    RecognitionEvent,
    Recognizer,
    TurnDetection,
)
from antiphon_gateway.quota.metering import recognition_metered


class RecognitionStream(EventStream[RecognitionEvent], Protocol):
    """Live audio in; turn events, partial and final text out; RecognitionFinished last.

    Use as ``async with recognition.stream(config) as stream: async for event in stream``. Leaving
    the block ends the recognition at the service. Iteration raises its typed AntiphonError. What
    is sent is queued, in order; ``queued_bytes`` and ``room`` tell whether the service keeps up.
    """

    @property
    def queued_bytes(self) -> int: ...

    def send_audio(self, data: bytes) -> None: ...

    def flush(self, tag: str = "") -> None: ...

    def reset(self) -> None: ...

    def set_turn_detection(self, detection: TurnDetection) -> None: ...

    def end_input(self) -> None: ...

    async def room(self, limit: int) -> None: ...


class FileRecognitionStream(TwoWayStream[FileEvent]):
    """A file in any container in; segments in time order and FileFinished out."""

    def __init__(self, call: Any, config: RecognitionConfig) -> None:
        observe = recognition_metered(convert.file_response_to_event, config.model)
        super().__init__(call, observe, FileFinished)
        self._config = config

    async def _enter(self) -> None:
        await self._write(convert.file_config_to_proto(self._config))

    async def send_bytes(self, data: bytes) -> None:
        """Appends bytes of the file."""
        for start in range(0, len(data), AUDIO_PIECE_BYTES):
            await self._write(convert.file_audio_to_proto(data[start : start + AUDIO_PIECE_BYTES]))


class RecognitionClient:
    """One recognition service.

    Args:
        channel: to the service, or to the proxy before it.
        multiplexed: carry all live recognitions on one call. It costs a fraction per append, but
            all of them reach the same replica, so it is not for a channel to a balancing proxy.
    """

    def __init__(self, channel: grpc.aio.Channel, *, multiplexed: bool) -> None:
        self._stub: Any = recognition_service_pb2_grpc.RecognitionServiceStub(channel)
        self._many = (
            RecognitionMultiplexer(self._stub.StreamingRecognizeMany) if multiplexed else None
        )

    def close(self) -> None:
        """Ends the live recognitions of the shared call."""
        if self._many is not None:
            self._many.close()

    def stream(self, config: RecognitionConfig) -> RecognitionStream:
        """Opens live recognition for the current request context."""
        if self._many is not None:
            return self._many.start(config)
        return SingleRecognition(self._stub.StreamingRecognize(timeout=config.timeout), config)

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
