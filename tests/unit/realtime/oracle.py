"""The protocol's oracle: reads an event log and refuses every log that breaks a rule.

It knows nothing of the implementation; ``check_state`` alone compares a log with a state.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

from antiphon_gateway.realtime.state import SessionState

Event = dict[str, Any]


@dataclass
class ResponseLog:
    """What a response has shown so far."""

    in_conversation: bool
    open_items: dict[str, int] = field(default_factory=dict)
    open_parts: set[str] = field(default_factory=set)
    text: dict[str, str] = field(default_factory=dict)
    ended: dict[str, set[str]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    audio_bytes: int = 0


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
        self.transcripts: dict[str, str] = {}
        self.awaiting: set[str] = set()
        self.count = 0

    def observe(self, event: Event) -> None:
        """Takes the next event."""
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

    def on_input_audio_buffer_speech_started(self, event: Event) -> None:
        assert self.open_turn is None, "a turn is open already"
        self.open_turn = event["item_id"]

    def on_input_audio_buffer_speech_stopped(self, event: Event) -> None:
        assert self.open_turn == event["item_id"], "the turn was not open"
        self.stopped = event["item_id"]
        self.open_turn = None

    def on_input_audio_buffer_committed(self, event: Event) -> None:
        assert event["previous_item_id"] == (self.order[-1] if self.order else None)
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
        self.responses[response["id"]] = ResponseLog(in_conversation)

    def on_response_done(self, event: Event) -> None:
        response = event["response"]
        log = self.responses.pop(response["id"])
        self.done.add(response["id"])
        if self.active == response["id"]:
            self.active = None
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
            log.audio_bytes += len(base64.b64decode(event["delta"]))
        else:
            log.text[item_id] = log.text.get(item_id, "") + event["delta"]

    def finish(self) -> None:
        """The log is complete: every response has ended, every item is done."""
        assert not self.responses and self.active is None
        assert not self.undone

    def check_state(self, state: SessionState) -> None:
        """The log and the state tell the same story."""
        assert (state.turn.item_id if state.turn else None) == self.open_turn or (
            state.turn is None
        ), "an open turn has its speech_started"
        if state.turn is None:
            self.open_turn = None
        assert (state.active.id if state.active else None) == self.active
        assert set(state.responses) == set(self.responses)
        assert [entry.id for entry in state.conversation] == self.order, "one total order"
        buffer = state.buffer
        assert buffer.received == buffer.used + buffer.dropped + len(buffer)

    def _log(self, event: Event) -> ResponseLog:
        response_id = event["response_id"]
        assert response_id not in self.done, "nothing of a response after its done"
        assert response_id in self.responses, "nothing of a response before its created"
        return self.responses[response_id]
