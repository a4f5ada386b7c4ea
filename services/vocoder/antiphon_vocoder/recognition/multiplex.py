"""StreamingRecognizeMany: many live streams on one call."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from antiphon.vocoder.v1 import recognition_service_pb2 as pb
from antiphon_core import metrics
from antiphon_core.errors import AntiphonError, DeadlineExceeded, Internal
from antiphon_core.logs import get_logger
from antiphon_core.rpc.context import current, use_context
from antiphon_core.rpc.errors import to_status
from antiphon_core.rpc.multiplexed import MultiplexedCall, check_ids

from antiphon_vocoder.recognition import convert
from antiphon_vocoder.recognition import messages as wire
from antiphon_vocoder.recognition.session import Session

if TYPE_CHECKING:
    from antiphon_vocoder.recognition.service import RecognitionRuntime

log = get_logger("recognition.multiplex")


@dataclass
class _Stream:
    """One stream that lives."""

    session: Session
    resources: ExitStack
    """Holds the session."""
    heard_at: float
    """Loop's seconds of the caller's last word."""
    is_input_over: bool = False
    relay: asyncio.Task[None] | None = None
    idle: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Frees what it holds; harmless when repeated."""
        if self.idle is not None:
            self.idle.cancel()
        if self.relay is not None and self.relay is not asyncio.current_task():
            self.relay.cancel()
        self.resources.close()


@dataclass
class _Outgoing:
    """What the next message says."""

    events: list[pb.StreamEvent] = field(default_factory=list)
    credits: dict[str, int] = field(default_factory=dict)
    """Bytes by stream."""


class RecognitionMultiplexer(
    MultiplexedCall[pb.StreamingRecognizeManyRequest, pb.StreamingRecognizeManyResponse]
):
    """The streams of one call.

    A caller sends no more audio of a stream than it has credit for, so that one that the worker is
    slow to hear holds nobody else back. A stream that fails ends alone.

    Args:
        runtime: opens the sessions.
    """

    def __init__(self, runtime: RecognitionRuntime) -> None:
        super().__init__(runtime.lifecycle)
        self._runtime = runtime
        self._idle_seconds = runtime.settings.stream_idle_seconds
        self._loop = asyncio.get_running_loop()
        self._live: dict[str, _Stream] = {}
        self._outgoing = _Outgoing()
        self._ended = metrics.counter(
            "recognition_multiplexed_streams_total", "Streams of shared calls that ended", ("code",)
        )

    @property
    def is_idle(self) -> bool:
        return not self._live and not self._outgoing.events

    def accept(self, request: pb.StreamingRecognizeManyRequest) -> None:
        if len(request.stream_ids) != len(request.audio):
            raise convert.protocol_error("each piece of audio needs its stream id", "audio")
        now = self._loop.time()
        for stream_id, data in zip(request.stream_ids, request.audio, strict=True):
            stream = self._live.get(stream_id)
            if stream is None:
                continue
            try:
                convert.check_size(data)
                self._hear(stream, data, now)
            except AntiphonError as error:
                self._fail(stream_id, error)
        for action in request.actions:
            self._act(action, now)

    def gather(self) -> pb.StreamingRecognizeManyResponse | None:
        outgoing, self._outgoing = self._outgoing, _Outgoing()
        if not outgoing.events and not outgoing.credits:
            return None
        return pb.StreamingRecognizeManyResponse(
            events=outgoing.events,
            credit_stream_ids=outgoing.credits.keys(),
            credit_bytes=outgoing.credits.values(),
        )

    def input_ended(self) -> None:
        for stream_id, stream in list(self._live.items()):
            try:
                self._end_input(stream)
            except AntiphonError as error:
                self._fail(stream_id, error)

    def release(self) -> None:
        for stream_id in list(self._live):
            self._drop(stream_id, "CANCELLED")

    def _act(self, action: pb.StreamAction, now: float) -> None:
        stream_id, kind = action.stream_id, action.WhichOneof("action")
        if kind == "start":
            check_ids(stream_id, action.start.request_id, self._live)
            with use_context(replace(current(), request_id=action.start.request_id or stream_id)):
                self._start(stream_id, action.start.config, now)
            return
        if kind is None:
            raise convert.protocol_error("an action without content", "actions.action")
        stream = self._live.get(stream_id)
        if stream is None:
            return
        try:
            if kind == "cancel":
                self._drop(stream_id, "CANCELLED")
            elif kind == "end_input":
                self._end_input(stream)
            else:
                command = convert.stream_command(action.message, stream.session.number)
                if isinstance(command, wire.Audio):
                    self._hear(stream, command.data, now)
                else:
                    self._tell(stream, command, now)
        except AntiphonError as error:
            self._fail(stream_id, error)

    def _start(self, stream_id: str, config: pb.RecognitionConfig, now: float) -> None:
        runtime = self._runtime
        resources = ExitStack()

        def consumed(count: int) -> None:
            waiting = self._outgoing.credits
            waiting[stream_id] = waiting.get(stream_id, 0) + count
            self.wake()

        try:
            runtime.lifecycle.require_ready()
            options = convert.stream_options(config, runtime.settings, runtime.recognizer)
            session = resources.enter_context(runtime.stream_session(options, consumed))
        except AntiphonError as error:
            self._refuse(stream_id, error)
            return
        stream = self._live[stream_id] = _Stream(session, resources, now)
        stream.relay = asyncio.create_task(
            self._relay(stream_id, session), name=f"recognize-many-{stream_id}"
        )
        self._watch(stream_id, stream, self._idle_seconds)

    async def _relay(self, stream_id: str, session: Session) -> None:
        """Passes on what the worker says about one stream."""
        try:
            while True:
                message = await session.next()
                if isinstance(message, wire.StreamReady):
                    model = self._runtime.settings.model_name
                    response = convert.ready_response(message, model)
                else:
                    response = convert.stream_response(message)
                if response is not None:
                    self._say(pb.StreamEvent(stream_id=stream_id, message=response))
                if isinstance(message, wire.StreamFinished):
                    self._drop(stream_id, "OK")
                    return
        except AntiphonError as error:
            self._fail(stream_id, error)
        except Exception:
            log.exception("recognition_stream_failed")
            self._fail(stream_id, Internal("the stream could not be served"))

    def _hear(self, stream: _Stream, data: bytes, now: float) -> None:
        _check_open(stream)
        stream.session.push_audio(data)
        stream.heard_at = now

    def _tell(self, stream: _Stream, command: wire.StreamCommand, now: float) -> None:
        _check_open(stream)
        stream.session.send(command)
        stream.heard_at = now

    def _end_input(self, stream: _Stream) -> None:
        if not stream.is_input_over:
            stream.is_input_over = True
            stream.session.send(wire.EndInput(stream.session.number))

    def _watch(self, stream_id: str, stream: _Stream, seconds: float) -> None:
        """Ends a stream that says nothing for long; a timer for each word would cost more."""

        def look() -> None:
            left = stream.heard_at + self._idle_seconds - self._loop.time()
            if stream.is_input_over:
                return
            if left > 0:
                self._watch(stream_id, stream, left)
            else:
                limit = f"{self._idle_seconds:g} s"
                error = DeadlineExceeded(
                    f"the stream had no message for {limit}", reason="INPUT_IDLE"
                )
                self._fail(stream_id, error)

        stream.idle = self._loop.call_later(seconds, look)

    def _fail(self, stream_id: str, error: AntiphonError) -> None:
        """Ends one stream with its error."""
        log.info("recognition_stream_ended", stream_id=stream_id, reason=error.reason)
        self._drop(stream_id, error.code.name)
        self._refuse(stream_id, error)

    def _refuse(self, stream_id: str, error: AntiphonError) -> None:
        self._say(pb.StreamEvent(stream_id=stream_id, error=to_status(error)))

    def _say(self, event: pb.StreamEvent) -> None:
        self._outgoing.events.append(event)
        self.wake()

    def _drop(self, stream_id: str, code: str) -> None:
        """Forgets a stream."""
        stream = self._live.pop(stream_id, None)
        if stream is not None:
            self._outgoing.credits.pop(stream_id, None)
            stream.close()
            self._ended.labels(code).inc()


def _check_open(stream: _Stream) -> None:
    if stream.is_input_over:
        raise convert.protocol_error("nothing may follow end_input", "message")
