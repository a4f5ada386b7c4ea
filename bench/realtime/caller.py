"""A caller: an open microphone at its own pace, and an ear, on one WebSocket."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import websockets
from antiphon_cli.talk.audio import REALTIME_RATE, end_of_speech, to_pcm16
from websockets.asyncio.client import ClientConnection

from bench.realtime.turns import Question, Turn, TurnReader

Observer = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Manners:
    """How callers behave."""

    frame_ms: int = 20
    pause_s: float = 0.5
    """From the end of a reply's playback to the next question."""
    interrupt_after_s: float | None = None
    """Where given, each turn but the last is interrupted so long after it became audible."""
    patience_s: float = 60.0
    """A turn without its end after this time is lost."""
    session: dict[str, Any] = field(default_factory=dict)
    """Fields of session.update."""


class Caller:
    """One session.

    Args:
        url: of the WebSocket, query and all.
        headers: of the upgrade.
        manners: of this caller.
        observe: gets every server event, in order.
    """

    def __init__(
        self,
        url: str,
        number: int,
        manners: Manners,
        *,
        headers: dict[str, str] | None = None,
        observe: Observer = lambda event: None,
    ) -> None:
        self.turns: list[Turn] = []
        self.reader = TurnReader()
        self.closed: str = ""
        """Why the connection ended before its caller wanted it to."""
        self._url, self._number, self._manners = url, number, manners
        self._headers, self._observe = headers or {}, observe
        self._speech: list[tuple[Turn, bytes, int]] = []
        self._changed = asyncio.Event()
        self._updated = False

    async def call(self, questions: Sequence[Question]) -> None:
        """Asks every question in turn; every turn ends in ``turns`` with its outcome."""
        try:
            async with websockets.connect(
                self._url, additional_headers=self._headers, compression=None, max_size=None
            ) as socket:
                await self._converse(socket, questions)
        except (OSError, websockets.WebSocketException, TimeoutError) as error:
            self.closed = f"{type(error).__name__}: {error}"
        missing = questions[len(self.turns) :]
        self.turns += [Turn(question, self._number) for question in missing]
        for turn in self.turns:
            if turn.outcome == "lost" and self.closed:
                turn.outcome, turn.error = "failed", self.closed

    async def _converse(self, socket: ClientConnection, questions: Sequence[Question]) -> None:
        hearing = asyncio.create_task(self._hear(socket))
        speaking: asyncio.Task[None] | None = None
        try:
            await self._settled(socket)
            speaking = asyncio.create_task(self._speak(socket))
            for place, question in enumerate(questions):
                await self._turn(question, last=place == len(questions) - 1)
        finally:
            for task in (hearing, speaking):
                if task is not None:
                    task.cancel()
                    with suppress(asyncio.CancelledError, websockets.WebSocketException):
                        await task

    async def _settled(self, socket: ClientConnection) -> None:
        """The session's settings hold."""
        session = {"type": "realtime", **self._manners.session}
        await socket.send(json.dumps({"type": "session.update", "session": session}))
        await self._until(lambda: self._updated, self._manners.patience_s)

    async def _turn(self, question: Question, last: bool) -> None:
        turn = Turn(question, self._number)
        self.turns.append(turn)
        self.reader.current = turn
        pcm = to_pcm16(question.samples)
        self._speech.append((turn, pcm, 2 * end_of_speech(question.samples)))
        after = None if last else self._manners.interrupt_after_s
        patience = self._manners.patience_s
        try:
            if after is None:
                await self._until(turn.heard_out, patience)
                await self._played(turn)
            else:
                await self._until(lambda: _audible_at(turn) or turn.heard_out(), patience)
                at = _audible_at(turn) or 0.0
                await asyncio.sleep(max(0.0, at - time.perf_counter()) + after)
        except TimeoutError:
            return
        _judge(turn, interrupted=after is not None)

    async def _played(self, turn: Turn) -> None:
        """The reply has sounded, and a pause follows."""
        ends = turn.reply.player.ends_at() if turn.reply else None
        left = (ends or 0.0) - time.perf_counter()
        await asyncio.sleep(max(0.0, left) + self._manners.pause_s)

    async def _until(self, condition: Callable[[], object], seconds: float) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                if self.closed:
                    raise ConnectionError(self.closed)
                self._changed.clear()
                await self._changed.wait()

    async def _hear(self, socket: ClientConnection) -> None:
        async for message in socket:
            now = time.perf_counter()
            event = json.loads(message)
            self._updated |= event["type"] == "session.updated"
            self.reader.read(event, now)
            self._observe(event)
            self._changed.set()
        self.closed = f"the server closed: {socket.close_code} {socket.close_reason}"
        self._changed.set()

    async def _speak(self, socket: ClientConnection) -> None:
        """Frames at the pace of a clock: questions when there are some, else silence."""
        size = 2 * REALTIME_RATE * self._manners.frame_ms // 1000
        silence = bytes(size)
        due = time.perf_counter()
        turn, pcm, end, offset = None, b"", 0, 0
        while True:
            if turn is None and self._speech:
                turn, pcm, end = self._speech.pop(0)
                offset, turn.begun = 0, time.perf_counter()
            frame = silence if turn is None else pcm[offset : offset + size].ljust(size, b"\0")
            audio = base64.b64encode(frame).decode()
            await socket.send(f'{{"type":"input_audio_buffer.append","audio":"{audio}"}}')
            if turn is not None:
                if offset < end <= offset + size:
                    turn.speech_end = time.perf_counter()
                    self._changed.set()
                offset += size
                turn = turn if offset < len(pcm) else None
            due += self._manners.frame_ms / 1000
            await asyncio.sleep(max(0.0, due - time.perf_counter()))


def _audible_at(turn: Turn) -> float | None:
    return turn.reply.player.audible_at if turn.reply is not None else None


def _judge(turn: Turn, interrupted: bool) -> None:
    reply = turn.reply
    assert reply is not None
    if interrupted and reply.status != "failed":
        turn.outcome = "interrupted"
    elif reply.status in ("completed", "incomplete"):
        turn.outcome = "completed"
    else:
        turn.outcome, turn.error = "failed", reply.error or reply.status
