"""One realtime socket: one task group, in which only the reducer changes the session's state."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Coroutine
from functools import partial
from typing import Any, get_args

from antiphon_core import metrics
from antiphon_core.logs import get_logger
from starlette.websockets import WebSocket, WebSocketDisconnect

from antiphon_gateway.clients import Backends
from antiphon_gateway.quota.meter import current_meter
from antiphon_gateway.realtime import codec, commands, inputs, session
from antiphon_gateway.realtime.errors import ProtocolError
from antiphon_gateway.realtime.events import AppendAudio, ClientEvent, RateLimit
from antiphon_gateway.realtime.latency import TIMED, TurnClock
from antiphon_gateway.realtime.outbox import Outbox, SlowReader
from antiphon_gateway.realtime.phrase_cache import PhraseCache
from antiphon_gateway.realtime.recognizer import RecognizerRunner
from antiphon_gateway.realtime.response import run_response
from antiphon_gateway.realtime.state import SessionState
from antiphon_gateway.realtime.summary import summarize
from antiphon_gateway.websocket import TAP

TICK_SECONDS = 1.0
CLOSE_GRACE_SECONDS = 5.0
SLOW_READER_CODE = 1008
DEFECT_CODE = 1011

_APPEND = b'"input_audio_buffer.append"'
_APPEND_WITHIN = 640
"""Bytes of a frame in which an append says what it is, with the longest id before it."""

log = get_logger(__name__)

_events_in = metrics.counter("realtime_client_events_total", "Client events received", ("type",))
_of_type = {
    event: _events_in.labels(event.__struct_config__.tag) for event in get_args(ClientEvent)
}
_closes = metrics.counter("realtime_closes_total", "Closed realtime sockets", ("code",))
_turns = metrics.counter(
    "realtime_turns_total", "Committed user turns, by who ended them", ("detection",)
)
_speculations = metrics.counter(
    "realtime_speculations_total", "Replies that were prepared in a pause", ("outcome",)
)
_speculative_tokens = metrics.counter(
    "realtime_speculative_tokens_total", "Tokens of replies prepared in a pause", ("outcome",)
)


class _Over(Exception):
    """Ends the task group: the connection is over."""


class Connection:
    """Runs an accepted socket until it closes from either side.

    Args:
        socket: accepted.
        state: a fresh session.
        backends: what replies run on.
        phrases: audio of acknowledgement phrases, shared by all sessions.
    """

    def __init__(
        self, socket: WebSocket, state: SessionState, backends: Backends, phrases: PhraseCache
    ) -> None:
        self._socket = socket
        self._state = state
        self._backends = backends
        self._clock = asyncio.get_running_loop().time
        self._turn_clock = TurnClock()
        self._phrases = phrases
        self._meter = current_meter()
        self._outbox = Outbox(
            self._write, self._audio_sent, state.limits.send_stall_seconds, self._clock
        )
        self._inputs: deque[inputs.Input] = deque()
        self._stepping = False
        self._append_count = 0
        """Append events that no counter knows of yet."""
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at: float | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._recognizer = RecognizerRunner(backends, self.dispatch, self._spawn)
        self._replies: dict[str, asyncio.Task[None]] = {}
        self._releases: dict[str, asyncio.Event] = {}
        self._close: commands.Close | None = None

    async def run(self) -> None:
        """Serves the socket; when it returns, every task and every backend call has ended."""
        code = 1000
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self.dispatch(inputs.Opened())
                self._tap(tasks.create_task(self._receive()))
                tasks.create_task(self._send())
                tasks.create_task(self._tick())
        except* _Over:
            code = self._close.code if self._close else code
        except* WebSocketDisconnect as gone:
            code = _disconnect_code(gone)
        except* SlowReader:
            code = SLOW_READER_CODE
            await self._shut(commands.Close(code, "the client does not read"))
        except* Exception as group:
            code = DEFECT_CODE
            log.exception("realtime_connection_failed", exc_info=group)
            await self._shut(commands.Close(code, "internal error"))
        finally:
            self._state.closed = True
            self._count_appends()
            if self._alarm is not None:
                self._alarm.cancel()
            _closes.labels(code).inc()
            if self._outbox.underruns:
                log.info("realtime_underruns", count=self._outbox.underruns)

    def dispatch(self, event: inputs.Input) -> None:
        """Feeds the reducer and carries its commands out; never blocks.

        What a command causes at once is fed after the commands of its own step.
        """
        if self._stepping:
            self._inputs.append(event)
            return
        self._stepping = True
        try:
            self._step(event)
            while self._inputs:
                self._step(self._inputs.popleft())
        finally:
            self._stepping = False
        self._set_alarm()

    def _step(self, event: inputs.Input) -> None:
        now = self._clock()
        if type(event) in TIMED:
            self._turn_clock.note(event, now)
        for command in session.step(self._state, event, now):
            # Of each append, 50 a second in every call.
            if type(command) is commands.RecognizeAudio:
                self._recognizer.send(command)
            else:
                self._carry_out(command)

    def _set_alarm(self) -> None:
        due = session.deadline(self._state)
        if due == self._alarm_at:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = due
        self._alarm = None
        if due is not None and not self._state.closed:
            self._alarm = asyncio.get_running_loop().call_at(due, self._ring)

    def _ring(self) -> None:
        self._alarm = self._alarm_at = None
        self.dispatch(inputs.Tick(self._backends.load))

    def drain(self) -> None:
        """Finishes the active response, then closes with 1012."""
        self.dispatch(inputs.Drain())

    def _carry_out(self, command: commands.Command) -> None:
        match command:
            case commands.Send():
                self._outbox.put(command)
            case commands.FlushRecognizer() | commands.TuneRecognizer():
                self._recognizer.send(command)
            case commands.SilenceLane():
                self._outbox.silence(command.lane, command.generation)
            case commands.OpenRecognizer():
                self._recognizer.open(command)
            case commands.TranscribeItem():
                self._spawn(self._recognizer.transcribe(command))
            case commands.StartResponse():
                self._start_reply(command.plan)
            case commands.ReleaseResponse():
                if command.response_id in self._releases:
                    self._releases[command.response_id].set()
            case commands.StopResponse():
                self._stop_reply(command.response_id)
            case commands.Summarize():
                self._spawn(summarize(command, self._backends, self.dispatch))
            case commands.PreparePhrase():
                self._spawn(self._phrases.prepare(command, self._backends, self.dispatch))
            case commands.ReportRateLimits():
                self._report_rate_limits()
            case commands.Close():
                self._close = command
                self._outbox.finish()
            case _:
                _count(command)

    def _start_reply(self, plan: commands.ResponsePlan) -> None:
        released = asyncio.Event()
        if not plan.held:
            released.set()
        task = self._spawn(
            run_response(plan, self._backends, self.dispatch, self._outbox.audio_credit, released)
        )
        self._replies[plan.response_id] = task
        self._releases[plan.response_id] = released
        task.add_done_callback(lambda done: self._forget(plan, done))

    def _stop_reply(self, response_id: str) -> None:
        task = self._replies.pop(response_id, None)
        if task is not None:
            task.cancel()

    def _report_rate_limits(self) -> None:
        if self._meter is None:
            return
        limits = tuple(
            RateLimit(name, capacity, left, round(wait, 3))
            for name, capacity, left, wait in self._meter.remaining()
        )
        if limits:
            self.dispatch(inputs.RateLimitsKnown(limits))

    def _forget(self, plan: commands.ResponsePlan, task: asyncio.Task[None]) -> None:
        if self._replies.get(plan.response_id) is task:
            del self._replies[plan.response_id]
        if plan.response_id not in self._replies:
            self._releases.pop(plan.response_id, None)
        if plan.lane == plan.response_id:
            self._outbox.forget(plan.lane)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._tasks is not None
        return self._tasks.create_task(work)

    async def _receive(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", 1005))
            text = message.get("text")
            if text is None:
                error = ProtocolError("only text frames are served", code="invalid_message")
                self.dispatch(inputs.BadFrame(error, None))
                continue
            try:
                event = codec.decode(text)
            except codec.InvalidEvent as invalid:
                _events_in.labels("invalid").inc()
                self.dispatch(inputs.BadFrame(invalid.error, invalid.event_id))
                continue
            if type(event) is AppendAudio:
                self._append_count += 1
            else:
                _of_type[type(event)].inc()
            self.dispatch(event)
            if not self._recognizer.has_room:
                await self._recognizer.room()

    def _tap(self, receiving: asyncio.Task[None]) -> None:
        """Takes appends where the socket is read, as long as the task receives the rest."""
        set_tap = self._socket.scope.get("extensions", {}).get(TAP)
        if set_tap is not None:
            # What an append starts belongs to this session, not to who reads the socket.
            set_tap(partial(contextvars.copy_context().run, self._take_append))
            receiving.add_done_callback(lambda _: set_tap(None))

    def _take_append(self, payload: bytes) -> bool:
        """Takes a good append where it is read; everything else, errors too, is ``_receive``'s."""
        if _APPEND not in payload[:_APPEND_WITHIN] or not payload.isascii():
            return False
        if not self._recognizer.has_room:
            return False
        try:
            event = codec.decode(payload)
        except codec.InvalidEvent:
            return False
        if type(event) is not AppendAudio:
            return False
        self._append_count += 1
        try:
            self.dispatch(event)
        except Exception as defect:
            self._spawn(_fail(defect))
        return True

    async def _send(self) -> None:
        await self._outbox.run()
        if self._close is not None:
            await self._shut(self._close)
        raise _Over

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._count_appends()
            self.dispatch(inputs.Tick(self._backends.load))

    def _count_appends(self) -> None:
        """Counts them a tick at a time: a counter's lock is dear 50 times a second."""
        _of_type[AppendAudio].inc(self._append_count)
        self._append_count = 0

    async def _write(self, frame: bytes) -> None:
        await self._socket.send_text(frame.decode())

    def _audio_sent(self, tag: commands.AudioTag) -> None:
        self._turn_clock.audio_sent(tag.response_id, self._clock())
        self.dispatch(inputs.AudioSent(tag.response_id, tag.item_id, tag.sample_count))

    async def _shut(self, close: commands.Close) -> None:
        try:
            async with asyncio.timeout(CLOSE_GRACE_SECONDS):
                await self._socket.close(close.code, close.reason)
        except (TimeoutError, RuntimeError, WebSocketDisconnect):
            log.info("realtime_close_unanswered", code=close.code)


async def _fail(defect: Exception) -> None:
    """Ends the task group with what broke outside of its tasks."""
    raise defect


def _count(command: commands.Command) -> None:
    match command:
        case commands.CountTurn():
            _turns.labels(command.detection).inc()
        case commands.CountSpeculation():
            _speculations.labels(command.outcome).inc()
            _speculative_tokens.labels(command.outcome).inc(command.token_count)
        case commands.CountFallback():
            metrics.fallback(command.component, command.reason)
        case _:
            raise TypeError(type(command).__name__)


def _disconnect_code(group: BaseExceptionGroup[WebSocketDisconnect]) -> int:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, WebSocketDisconnect)
    return error.code
