"""Many live recognitions over one StreamingRecognizeMany call of one backend.

Audio that several sessions append in one turn of the loop, or while a message is under way, leaves
in one message. A stream whose audio the service does not take waits for its credit alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from antiphon.vocoder.v1 import recognition_service_pb2 as pb
from antiphon_core.errors import DeadlineExceeded
from antiphon_core.rpc.context import current
from antiphon_core.rpc.errors import from_status

from antiphon_gateway.clients.shared import SharedCall, SharedStream
from antiphon_gateway.convert import recognition as convert
from antiphon_gateway.domain.recognition import (
    RecognitionConfig,
    RecognitionEvent,
    RecognitionFinished,
    TurnDetection,
)
from antiphon_gateway.quota.metering import recognition_metered

CREDIT_BYTES = 1 << 20
"""Audio of a stream that may be under way without credit, by contract."""
MESSAGE_BYTES = 4 << 20
"""A message is closed at this size."""
INBOX_EVENTS = 10_000
"""What a reader may fall behind."""


class RecognitionMultiplexer:
    """Opens live recognitions on the open call, opening one where there is none.

    Args:
        open_call: begins a StreamingRecognizeMany call.
    """

    def __init__(self, open_call: Callable[[], Any]) -> None:
        self._open_call = open_call
        self._call: _RecognitionCall | None = None

    def start(self, config: RecognitionConfig) -> MultiplexedRecognition:
        """Starts a recognition for the current request context."""
        if self._call is None or self._call.is_over:
            self._call = _RecognitionCall(self._open_call, "recognition")
        return MultiplexedRecognition(self._call, config)

    def close(self) -> None:
        """Ends the call and every recognition on it."""
        if self._call is not None:
            self._call.close()


class MultiplexedRecognition(SharedStream[RecognitionEvent]):
    """One live recognition; used as every RecognitionStream is."""

    kind = "recognition"

    def __init__(self, call: _RecognitionCall, config: RecognitionConfig) -> None:
        context = current()
        super().__init__(call, context.remaining() if config.timeout is None else config.timeout)
        self._outbox = call.outbox
        self._observe = recognition_metered(convert.live_response_to_event, config.model)
        self._credit = CREDIT_BYTES
        self._waiting: deque[bytes | pb.StreamAction] = deque()
        """What has to wait for credit, and what has to stay behind it."""
        self.queued_bytes = 0
        """Audio that waits for credit."""
        self._room = asyncio.Event()
        self._outbox.act(convert.start_to_proto(self.id, config, context.request_id))

    def send_audio(self, data: bytes) -> None:
        """Appends audio in the configured format; any cut is right. Nothing once it is over."""
        if self.is_over:
            return
        if self._waiting or len(data) > self._credit:
            self._waiting.append(data)
            self.queued_bytes += len(data)
            self._use_credit()
        else:
            self._credit -= len(data)
            self._outbox.add_audio(self.id, data)

    def flush(self, tag: str = "") -> None:
        """Ends the present utterance; the tag comes back in its final or error."""
        self._act(convert.message_to_proto(self.id, convert.flush_to_proto(tag)))

    def reset(self) -> None:
        """Drops the present utterance and all turn state."""
        self._act(convert.message_to_proto(self.id, convert.reset_to_proto()))

    def set_turn_detection(self, detection: TurnDetection) -> None:
        """Changes turn detection from here on."""
        message = convert.turn_detection_to_proto(detection)
        self._act(convert.message_to_proto(self.id, message))

    def end_input(self) -> None:
        """No more input follows."""
        self._act(convert.end_input_to_proto(self.id))

    async def room(self, limit: int) -> None:
        """Waits until at most ``limit`` bytes of audio wait, or the stream is over."""
        while self.queued_bytes > limit and not self.is_over:
            self._room.clear()
            await self._room.wait()

    def add_credit(self, count: int) -> None:
        """So many bytes more may be sent."""
        self._credit += count
        self._use_credit()
        self._room.set()

    def add(self, response: pb.StreamingRecognizeResponse) -> None:
        """Appends what the service said."""
        event = self._observe(response)
        if event is None:
            return
        self._is_accepted = True
        if isinstance(event, RecognitionFinished):
            self._end()
        self._put(event)
        if len(self._inbox) > INBOX_EVENTS:
            self.abandon(
                DeadlineExceeded(
                    f"the reader is more than {INBOX_EVENTS} events behind the recogniser",
                    reason="INPUT_IDLE",
                    metadata={"limit": str(INBOX_EVENTS)},
                )
            )

    def _act(self, action: pb.StreamAction) -> None:
        if self.is_over:
            return
        if self._waiting:
            self._waiting.append(action)
        else:
            self._outbox.act(action)

    def _use_credit(self) -> None:
        waiting = self._waiting
        while waiting:
            first = waiting[0]
            if isinstance(first, bytes):
                if not self._credit:
                    return
                sent, rest = first[: self._credit], first[self._credit :]
                self._credit -= len(sent)
                self.queued_bytes -= len(sent)
                self._outbox.add_audio(self.id, sent)
                if rest:
                    waiting[0] = rest
                    return
            else:
                self._outbox.act(first)
            waiting.popleft()

    def _end(self) -> None:
        super()._end()
        self._waiting.clear()
        self.queued_bytes = 0
        self._room.set()

    def _taken(self, event: RecognitionEvent) -> None:
        pass


class _Outbox:
    """What all streams of a call have still to say.

    Args:
        wake: called when there is something.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._audio: dict[str, list[bytes]] = {}
        self._actions: list[pb.StreamAction] = []
        self._acted: set[str] = set()
        """Streams that have an action in the message that is being made."""
        self._bytes = 0
        self._closed: deque[pb.StreamingRecognizeManyRequest] = deque()

    def add_audio(self, stream_id: str, data: bytes) -> None:
        """Appends audio; what the stream has said before stays before it."""
        if stream_id in self._acted:
            message = convert.live_audio_to_proto(data)
            self._actions.append(convert.message_to_proto(stream_id, message))
        else:
            pieces = self._audio.get(stream_id)
            if pieces is None:
                self._audio[stream_id] = [data]
            else:
                pieces.append(data)
        self._bytes += len(data)
        if self._bytes >= MESSAGE_BYTES:
            self._closed.append(self._close())
        self._wake()

    def act(self, action: pb.StreamAction) -> None:
        """Appends what is not plain audio."""
        self._actions.append(action)
        self._acted.add(action.stream_id)
        self._wake()

    def pop(self) -> pb.StreamingRecognizeManyRequest | None:
        """The next message; None where nothing waits."""
        if self._closed:
            return self._closed.popleft()
        return self._close() if self._audio or self._actions else None

    def unsent(self) -> set[str]:
        """Streams whose beginning still waits."""
        actions = [action for message in self._closed for action in message.actions]
        return {action.stream_id for action in actions + self._actions if action.HasField("start")}

    def _close(self) -> pb.StreamingRecognizeManyRequest:
        message = pb.StreamingRecognizeManyRequest(
            stream_ids=self._audio.keys(),
            audio=[
                pieces[0] if len(pieces) == 1 else b"".join(pieces)
                for pieces in self._audio.values()
            ],
            actions=self._actions,
        )
        self._audio = {}
        self._actions = []
        self._acted = set()
        self._bytes = 0
        return message


class _RecognitionCall(SharedCall[MultiplexedRecognition]):
    def __init__(self, open_call: Callable[[], Any], service: str) -> None:
        super().__init__(open_call, service)
        self.outbox = _Outbox(self._has_outgoing.set)

    def cancel(self, stream_id: str) -> None:
        if not self.is_over:
            self.outbox.act(convert.cancel_to_proto(stream_id))

    def _deal(self, message: pb.StreamingRecognizeManyResponse) -> Iterator[None]:
        streams = self._streams
        for item in message.events:
            stream = streams.get(item.stream_id)
            if stream is None:
                continue
            if item.WhichOneof("event") == "error":
                stream.fail(from_status(item.error))
            else:
                stream.add(item.message)
            yield
        for stream_id, count in zip(message.credit_stream_ids, message.credit_bytes, strict=True):
            stream = streams.get(stream_id)
            if stream is not None:
                stream.add_credit(count)
                yield

    def _next_message(self) -> pb.StreamingRecognizeManyRequest | None:
        return self.outbox.pop()

    def _unsent(self) -> set[str]:
        return self.outbox.unsent()
