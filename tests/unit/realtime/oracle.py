"""The protocol's oracle: reads an event log and refuses every log that breaks a rule.

It knows nothing of the implementation; ``check_state`` alone compares a log with a state. The
fixtures of the unit tests and of the tests over sockets feed it every event that they receive.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from typing import Any

from antiphon_gateway.realtime.state import SessionState

Event = dict[str, Any]

UNASKED = frozenset(
    [
        "session.created",
        "session.updated",
        "conversation.created",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.deleted",
        "conversation.item.retrieved",
        "conversation.item.truncated",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
        "conversation.item.input_audio_transcription.failed",
        "input_audio_buffer.committed",
        "input_audio_buffer.cleared",
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "response.created",
        "response.done",
        "response.output_item.added",
        "response.output_item.done",
        "response.content_part.added",
        "response.content_part.done",
        "response.output_text.delta",
        "response.output_text.done",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.delta",
        "response.output_audio_transcript.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "rate_limits.updated",
        "error",
    ]
)
"""The 31 types that a client gets without having asked for more."""
SEGMENT = "conversation.item.input_audio_transcription.segment"
FIXED = ("output_modalities", "audio", "max_output_tokens", "metadata", "conversation_id")
"""What a response keeps from its created to its done, whatever the session becomes."""


@dataclass
class ResponseLog:
    """What a response has shown so far."""

    in_conversation: bool
    created: dict[str, Any] = field(default_factory=dict)
    open_items: dict[str, int] = field(default_factory=dict)
    open_parts: set[str] = field(default_factory=set)
    text: dict[str, str] = field(default_factory=dict)
    ended: dict[str, set[str]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    audio_bytes: int = 0
    audio_hash: Any = field(default_factory=hashlib.sha256)


class Oracle:
    """Feed it every event in order, then ``finish``."""

    def __init__(self) -> None:
        self.last_event_id = ""
        self.order: list[str] = []
        self.added: set[str] = set()
        self.undone: set[str] = set()
        self.active: str | None = None
        self.responses: dict[str, ResponseLog] = {}
        self.done: set[str] = set()
        self.open_turn: str | None = None
        self.turn_may_be_over = False
        """Whether something happened since that ends a turn without an event."""
        self.transcripts: dict[str, str] = {}
        self.segments: set[str] = set()
        self.end_may_be_untold = False
        """Whether the client once did not want to know when output audio ends."""
        self.awaiting: set[str] = set()
        self.count = 0
        self.config: dict[str, Any] = {}
        self.to_be_cut: str | None = None
        """The response that the open turn interrupts."""
        self.sounding: str | None = None
        self.cleared = False
        """Whether the client has ended output audio itself; its answer is no surprise then."""

    def observe(self, event: Event) -> None:
        """Takes the next event."""
        assert event["type"] in UNASKED or self._asked(event["type"]), "a surprise type"
        assert event["event_id"] > self.last_event_id, "event ids increase"
        self.last_event_id = event["event_id"]
        if self.count < 2:
            assert event["type"] == ("session.created", "conversation.created")[self.count]
        self.count += 1
        name = event["type"].replace(".", "_")
        handler = getattr(self, f"on_{name}", None)
        if handler:
            handler(event)
        elif event["type"].startswith("response."):
            self.on_content(event)

    def on_session_created(self, event: Event) -> None:
        self.config = event["session"]

    def on_session_updated(self, event: Event) -> None:
        before, heard = self.config["audio"]["input"], self._asked(SEGMENT)
        self.config = event["session"]
        # Another way to hear begins with another recogniser stream, which ends an open turn.
        self.turn_may_be_over |= before != self.config["audio"]["input"]
        self.turn_may_be_over |= heard != self._asked(SEGMENT)
        self.end_may_be_untold |= not self._asked("output_audio_buffer.stopped")

    def on_input_audio_buffer_cleared(self, _event: Event) -> None:
        self.open_turn = None

    def on_input_audio_buffer_speech_started(self, event: Event) -> None:
        assert self.open_turn is None or self.turn_may_be_over, "a turn is open already"
        self.open_turn = event["item_id"]
        self.turn_may_be_over = False
        detection = self._detection()
        assert detection is not None, "speech events though the client ends its turns"
        self.to_be_cut = self.active if detection["interrupt_response"] else None

    def on_input_audio_buffer_timeout_triggered(self, event: Event) -> None:
        assert (self.open_turn is None or self.turn_may_be_over) and self.active is None
        assert event["audio_start_ms"] <= event["audio_end_ms"]

    def on_output_audio_buffer_started(self, event: Event) -> None:
        assert event["response_id"] in self.responses
        assert self.sounding is None or self.end_may_be_untold
        self.end_may_be_untold = False
        self.sounding = event["response_id"]

    def on_output_audio_buffer_stopped(self, event: Event) -> None:
        assert event["response_id"] == self.sounding and event["response_id"] in self.done
        self.sounding = None

    def on_output_audio_buffer_cleared(self, event: Event) -> None:
        self.sounding = None

    def on_input_audio_buffer_speech_stopped(self, event: Event) -> None:
        assert self.open_turn == event["item_id"], "the turn was not open"
        self.stopped = event["item_id"]
        self.open_turn = None

    def on_input_audio_buffer_committed(self, event: Event) -> None:
        assert event["previous_item_id"] == (self.order[-1] if self.order else None)
        assert self.to_be_cut is None or self.to_be_cut in self.done, "the reply was not cut off"
        self.to_be_cut = None
        self.awaiting.add(event["item_id"])
        if event["item_id"] == self.open_turn:
            self.open_turn = None

    def on_conversation_item_added(self, event: Event) -> None:
        item_id, previous = event["item"]["id"], event["previous_item_id"]
        assert item_id not in self.added, "one added per item"
        self.added.add(item_id)
        self.undone.add(item_id)
        position = 0 if previous is None else self.order.index(previous) + 1
        self.order.insert(position, item_id)
        for part in event["item"].get("content", ()):
            if part["type"] == "input_audio" and part["transcript"] is None:
                self.awaiting.add(item_id)

    def on_conversation_item_done(self, event: Event) -> None:
        item_id = event["item"]["id"]
        assert item_id in self.undone, "done without added, or twice"
        self.undone.remove(item_id)
        assert event["item"]["status"] != "in_progress"
        position = self.order.index(item_id)
        assert event["previous_item_id"] == (self.order[position - 1] if position else None)

    def on_conversation_item_deleted(self, event: Event) -> None:
        self.order.remove(event["item_id"])
        self.awaiting.discard(event["item_id"])

    def on_conversation_item_input_audio_transcription_delta(self, event: Event) -> None:
        assert event["item_id"] in self.added, "transcription before added"
        self.transcripts[event["item_id"]] = (
            self.transcripts.get(event["item_id"], "") + event["delta"]
        )

    def on_conversation_item_input_audio_transcription_segment(self, event: Event) -> None:
        assert event["item_id"] in self.awaiting, "a segment before added or after the terminal"
        assert 0 <= event["start"] <= event["end"] and event["text"]
        assert event["id"] not in self.segments, "ids are unique"
        self.segments.add(event["id"])

    def on_conversation_item_input_audio_transcription_completed(self, event: Event) -> None:
        item_id = event["item_id"]
        assert item_id in self.awaiting, "one terminal per committed item"
        self.awaiting.remove(item_id)
        assert self.transcripts.get(item_id, "") == event["transcript"], "deltas = completed"

    def on_conversation_item_input_audio_transcription_failed(self, event: Event) -> None:
        assert event["item_id"] in self.awaiting
        self.awaiting.remove(event["item_id"])

    def on_response_created(self, event: Event) -> None:
        response = event["response"]
        assert response["id"] not in self.responses and response["id"] not in self.done
        in_conversation = response["conversation_id"] is not None
        if in_conversation:
            assert self.active is None, "two active responses"
            self.active = response["id"]
        assert response["status"] == "in_progress" and response["status_details"] is None
        assert self.config.get("type") != "transcription", "a response nobody can have"
        self.responses[response["id"]] = ResponseLog(in_conversation, response)

    def on_response_done(self, event: Event) -> None:
        response = event["response"]
        log = self.responses.pop(response["id"])
        self.done.add(response["id"])
        if self.active == response["id"]:
            self.active = None
        changed = [name for name in FIXED if response[name] != log.created[name]]
        assert not changed, f"a running response changed: {changed}"
        assert not log.open_items and not log.open_parts, "added without done"
        assert [item["id"] for item in response["output"]] == log.outputs
        assert not any("audio" in part for i in response["output"] for part in i.get("content", ()))
        usage = response["usage"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        assert "cached_tokens_details" in usage["input_token_details"]
        assert (response["status_details"] is None) == (response["status"] == "completed")

    def on_response_output_item_added(self, event: Event) -> None:
        log = self._log(event)
        assert event["output_index"] == len(log.outputs)
        log.outputs.append(event["item"]["id"])
        log.open_items[event["item"]["id"]] = event["output_index"]
        if not log.in_conversation:
            return
        assert event["item"]["id"] not in self.added, "output_item.added comes first"

    def on_response_output_item_done(self, event: Event) -> None:
        log = self._log(event)
        item_id = event["item"]["id"]
        assert log.open_items.pop(item_id) == event["output_index"]
        assert item_id not in log.open_parts, "the part closes before its item"
        if log.in_conversation:
            assert item_id not in self.undone, "item.done comes before output_item.done"

    def on_response_content_part_added(self, event: Event) -> None:
        log = self._log(event)
        assert event["item_id"] in log.open_items
        if log.in_conversation:
            assert event["item_id"] in self.added
        log.open_parts.add(event["item_id"])

    def on_response_content_part_done(self, event: Event) -> None:
        log = self._log(event)
        log.open_parts.remove(event["item_id"])
        part = event["part"]
        assert part.get("text", part.get("transcript")) == log.text.get(event["item_id"], "")

    def on_content(self, event: Event) -> None:
        """Deltas and their terminals."""
        log = self._log(event)
        item_id = event["item_id"]
        assert item_id in log.open_items, "no delta before its added, none after its done"
        stem, _, ending = event["type"].rpartition(".")
        ended = log.ended.setdefault(item_id, set())
        assert stem not in ended, "nothing after a terminal"
        if "arguments" not in stem:
            assert item_id in log.open_parts
        if ending == "done":
            ended.add(stem)
            text = event.get("text", event.get("transcript", event.get("arguments")))
            if text is not None:
                assert text == log.text.get(item_id, ""), "joined deltas = done"
        elif "output_audio.delta" in event["type"]:
            data = base64.b64decode(event["delta"])
            log.audio_bytes += len(data)
            log.audio_hash.update(data)
            self.on_audio(event["response_id"], log)
        else:
            log.text[item_id] = log.text.get(item_id, "") + event["delta"]

    def on_audio(self, response_id: str, log: ResponseLog) -> None:
        """Audio of a response came; for those who know what it should be."""

    def finish(self) -> None:
        """The log is complete: every response has ended, every item is done."""
        assert not self.responses and self.active is None
        assert not self.undone

    def check_state(self, state: SessionState) -> None:
        """The log and the state tell the same story."""
        assert state.turn is None or state.turn.item_id == self.open_turn, (
            "an open turn has its speech_started"
        )
        if state.turn is None:
            self.open_turn = None
        assert (state.active.id if state.active else None) == self.active
        assert set(state.responses) == set(self.responses)
        assert [entry.id for entry in state.conversation] == self.order, "one total order"
        buffer = state.buffer
        assert buffer.received == buffer.used + buffer.dropped + len(buffer)

    def _asked(self, kind: str) -> bool:
        if kind == "input_audio_buffer.timeout_triggered":
            return bool((self._detection() or {}).get("idle_timeout_ms"))
        if kind == SEGMENT:
            transcription = self.config["audio"]["input"]["transcription"] or {}
            if transcription.get("model") == "gpt-4o-transcribe-diarize":
                return True
        if kind == "output_audio_buffer.cleared" and self.cleared:
            return True
        return kind in self.config.get("optional_events", ())

    def _detection(self) -> dict[str, Any] | None:
        return self.config["audio"]["input"]["turn_detection"]

    def _log(self, event: Event) -> ResponseLog:
        response_id = event["response_id"]
        assert response_id not in self.done, "nothing of a response after its done"
        assert response_id in self.responses, "nothing of a response before its created"
        return self.responses[response_id]
