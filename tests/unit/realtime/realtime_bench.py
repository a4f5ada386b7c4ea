"""Drives the reducer without sockets: a scripted client, scripted backends and a fake clock.

The SDK's types and the oracle judge every event that it sees.
"""

from __future__ import annotations

import json
from typing import Any

from antiphon_gateway.domain.generation import Usage
from antiphon_gateway.realtime import codec, commands, inputs, session
from antiphon_gateway.realtime.config import SessionType
from antiphon_gateway.realtime.errors import BackendFailure
from antiphon_gateway.realtime.events import encode
from antiphon_gateway.realtime.settings import RealtimeSettings
from antiphon_gateway.realtime.state import Served
from openai.types.realtime import RealtimeServerEvent
from oracle import Oracle
from pydantic import TypeAdapter

SERVER_EVENT = TypeAdapter(RealtimeServerEvent)
FAILURE = BackendFailure("server_error", "bad_gateway", "the worker died")
SECOND = 48_000
"""Bytes of one second of input audio."""


class Bench:
    """A session under test. ``events`` is all that was sent; ``commands`` all that was asked."""

    def __init__(
        self,
        settings: RealtimeSettings | None = None,
        served: Served | None = None,
        kind: SessionType = "realtime",
    ):
        self.now = 100.0
        self.events: list[dict[str, Any]] = []
        self.commands: list[commands.Command] = []
        self.oracle = Oracle()
        self.utterance = -1
        self.state = session.new_state(
            token="t" * 8,
            model="small" if kind == "realtime" else "",
            kind=kind,
            settings=settings or RealtimeSettings(instructions="Be brief."),
            served=served or Served(),
            wall_seconds=1_800_000_000,
        )
        self.feed(inputs.Opened())

    def feed(self, event: inputs.Input) -> list[dict[str, Any]]:
        """Steps once and returns the events that were sent."""
        made = session.step(self.state, event, self.now)
        self.commands += made
        sent = [json.loads(encode(c.event)) for c in made if isinstance(c, commands.Send)]
        for plain in sent:
            SERVER_EVENT.validate_python(plain)
            self.oracle.observe(plain)
        if not self.state.closed:
            self.oracle.check_state(self.state)
        self.events += sent
        return sent

    def client(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        """Sends a client event as JSON."""
        self.oracle.cleared |= kind == "output_audio_buffer.clear"
        frame = json.dumps({"type": kind, **fields})
        try:
            event = codec.decode(frame)
        except codec.InvalidEvent as invalid:
            return self.feed(inputs.BadFrame(invalid.error, invalid.event_id))
        return self.feed(event)

    def update(self, **change: Any) -> list[dict[str, Any]]:
        """session.update."""
        kind = self.state.config.type
        return self.client("session.update", session={"type": kind, **change})

    def append(self, seconds: float) -> list[dict[str, Any]]:
        """Appends silence."""
        import base64

        audio = base64.b64encode(bytes(int(seconds * SECOND))).decode()
        return self.client("input_audio_buffer.append", audio=audio)

    def say(self, text: str) -> list[dict[str, Any]]:
        """Creates a written user item."""
        item = {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": text}],
        }
        return self.client("conversation.item.create", item=item)

    def start_speech(self, at_ms: int = 0) -> list[dict[str, Any]]:
        """The recogniser hears speech begin."""
        self.utterance += 1
        return self.feed(inputs.SpeechBegan(self.state.epoch, self.utterance, at_ms))

    def stop_speech(self, at_ms: int) -> list[dict[str, Any]]:
        """The recogniser hears speech end."""
        return self.feed(inputs.SpeechEnded(self.state.epoch, self.utterance, at_ms))

    def transcript(self, text: str, tag: str = "") -> list[dict[str, Any]]:
        """The recogniser's final of the newest utterance."""
        return self.feed(inputs.Transcript(self.state.epoch, self.utterance, text, tag))

    def turn(self, text: str = "hello") -> list[dict[str, Any]]:
        """A whole spoken turn of one second."""
        start = self.state.buffer.end_ms
        sent = self.append(1.5)
        sent += self.start_speech(start)
        sent += self.stop_speech(start + 1000)
        return sent + self.transcript(text)

    @property
    def plan(self) -> commands.ResponsePlan:
        """The newest plan that was started."""
        return [c.plan for c in self.commands if isinstance(c, commands.StartResponse)][-1]

    def reply(self, *pieces: str, audio: bool = True, end: bool = True) -> list[dict[str, Any]]:
        """The backends answer the newest plan."""
        response = self.plan.response_id
        sent = self.feed(inputs.PromptAccepted(response, 7))
        offset = sample = 0
        for piece in pieces:
            sent += self.feed(inputs.TextProduced(response, piece, 1))
            offset += len(piece)
            if audio and self.plan.speech is not None:
                sent += self.feed(inputs.AudioProduced(response, bytes(9600), 4800))
                sample += 4800
                sent += self.feed(inputs.SpokenUpTo(response, offset, sample))
        if end:
            sent += self.end()
        return sent

    def end(self, cut: bool = False) -> list[dict[str, Any]]:
        """The newest plan's reply runs to its end."""
        response = self.plan.response_id
        usage = Usage(prompt_tokens=7, cached_tokens=3, output_tokens=5)
        sent = self.feed(inputs.TextEnded(response, cut, usage))
        return sent + self.feed(inputs.ReplyEnded(response))

    def play(self, seconds: float) -> None:
        """Audio of the reply leaves for the client."""
        active = self.state.active
        assert active and active.message
        samples = int(seconds * 24_000)
        self.feed(inputs.AudioSent(active.id, active.message.entry.id, samples))


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """Types of events, in order."""
    return [event["type"] for event in events]


def of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Events of one type."""
    return [event for event in events if event["type"] == kind]


def message_texts(plan: commands.ResponsePlan) -> list[tuple[str, str]]:
    """Role and text of a plan's prompt."""
    return [
        (message.role.value, "".join(part for part in message.parts if isinstance(part, str)))
        for message in plan.chat.messages
    ]
