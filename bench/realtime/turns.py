"""One spoken turn as its caller sees it, and the reading of server events into turns."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

from antiphon_cli.talk.audio import Samples, from_pcm16

from bench.realtime.player import Player


@dataclass(frozen=True)
class Question:
    """What a caller says: 24 kHz samples, and the words where they are known."""

    name: str
    samples: Samples
    text: str = ""


@dataclass
class Reply:
    """A response as it comes."""

    id: str
    created: float
    """t2."""
    first_text: float | None = None
    """t3: the first delta of its words."""
    first_audio: float | None = None
    """t4."""
    last_audio: float | None = None
    done: float | None = None
    status: str = ""
    error: str = ""
    text: str = ""
    player: Player = field(default_factory=Player)
    """Knows t5."""
    cut_at: float | None = None
    """When a speech_started came that interrupts it while it was being made."""

    @property
    def cut_delay(self) -> float | None:
        """From that speech_started to its last audio; 0 when none came after."""
        if self.cut_at is None:
            return None
        return max(0.0, (self.last_audio or 0.0) - self.cut_at)


@dataclass
class Turn:
    """Times are of one monotonic clock in seconds; what did not happen is None."""

    question: Question
    session: int
    begun: float = 0.0
    """The first sample was sent."""
    speech_end: float | None = None
    """t0: the last speech sample was sent."""
    started: float | None = None
    """speech_started came."""
    stopped: float | None = None
    """t1: speech_stopped came."""
    transcript: str | None = None
    reply: Reply | None = None
    splits: int = 0
    """Times that the server took a pause inside the question for its end."""
    outcome: str = "lost"
    """completed; interrupted by the caller's next turn; failed; or lost, without its end."""
    error: str = ""

    def heard_out(self) -> bool:
        """Whether the reply to the whole question has ended."""
        return (
            self.speech_end is not None
            and self.stopped is not None
            and self.stopped > self.speech_end
            and self.reply is not None
            and bool(self.reply.status)
        )


class TurnReader:
    """Files the events of one session under its turns."""

    def __init__(self) -> None:
        self.current: Turn | None = None
        self.errors: list[str] = []
        """Codes of error events."""
        self.events = 0
        self._replies: dict[str, Reply] = {}
        self._askers: dict[str, Turn] = {}

    def read(self, event: dict[str, Any], now: float) -> None:
        """Takes the next event, received at ``now``."""
        self.events += 1
        turn = self.current
        match event["type"]:
            case "input_audio_buffer.speech_started" if turn is not None:
                self._speech_started(turn, now)
            case "input_audio_buffer.speech_stopped" if turn is not None:
                turn.stopped = now
                self._askers[event["item_id"]] = turn
            case "conversation.item.input_audio_transcription.completed":
                if (asker := self._askers.get(event["item_id"])) is not None:
                    asker.transcript = f"{asker.transcript or ''} {event['transcript']}".strip()
            case "response.created" if turn is not None:
                turn.reply = Reply(event["response"]["id"], now)
                self._replies[turn.reply.id] = turn.reply
            case "error":
                self.errors.append(str(event["error"].get("code")))
            case _ if (reply := self._replies.get(_response_id(event))) is not None:
                _read_reply(reply, event, now)

    def _speech_started(self, turn: Turn, now: float) -> None:
        for reply in self._replies.values():
            if not reply.status and reply.cut_at is None:
                reply.cut_at = now
        if turn.stopped is not None:
            turn.splits += 1
            turn.reply = turn.stopped = None
        turn.started = turn.started or now


def _response_id(event: dict[str, Any]) -> str:
    if event["type"] == "response.done":
        return str(event["response"]["id"])
    return str(event.get("response_id", ""))


def _read_reply(reply: Reply, event: dict[str, Any], now: float) -> None:
    match event["type"]:
        case "response.output_audio_transcript.delta" | "response.output_text.delta":
            reply.first_text = reply.first_text or now
            reply.text += event["delta"]
        case "response.output_audio.delta":
            reply.first_audio = reply.first_audio or now
            reply.last_audio = now
            reply.player.push(from_pcm16(base64.b64decode(event["delta"])), now)
        case "response.output_audio.done":
            reply.player.end(now)
        case "response.done":
            reply.done, reply.status = now, event["response"]["status"]
            reply.player.end(now)
            details = event["response"].get("status_details") or {}
            reply.error = str((details.get("error") or {}).get("code") or "")
