"""Client edits of the conversation: create, delete, retrieve and truncate items."""

from __future__ import annotations

from msgspec.structs import replace

from antiphon_gateway.realtime import events, hearing, prompting, responses
from antiphon_gateway.realtime.conversation import MAX_ITEMS, Entry, with_audio
from antiphon_gateway.realtime.errors import ProtocolError
from antiphon_gateway.realtime.formats import sample_bytes, sample_rate
from antiphon_gateway.realtime.items import (
    FunctionCallOutputItem,
    InputAudio,
    Item,
    MessageItem,
    check_created_item,
)
from antiphon_gateway.realtime.playback import MAX_CLAIM_BEYOND_SENT_MS
from antiphon_gateway.realtime.state import SessionState, invalid_item


def create(state: SessionState, event: events.CreateItem) -> None:
    """Inserts an item where the client wants it.

    Raises:
        ProtocolError: a duplicate id, an unknown neighbour or call, or wrong content.
    """
    item = event.item
    check_created_item(item, "item")
    if isinstance(item, FunctionCallOutputItem) and not state.conversation.has_call(item.call_id):
        raise ProtocolError(
            f"there is no function call {item.call_id!r} in the conversation",
            code="tool_call_not_found",
            param="item.call_id",
        )
    item = replace(item, id=item.id or state.new_id("item"), status="completed")
    entry = _entry(state, item)
    previous = state.conversation.insert(entry, event.previous_item_id)
    state.announce(previous, entry.item)
    state.send(events.ItemDone(previous_item_id=previous, item=entry.item))
    if entry.awaits_transcript:
        hearing.transcribe_item(state, entry.id)


def bound(state: SessionState) -> None:
    """Drops the oldest items of a conversation that has too many."""
    while len(state.conversation) > MAX_ITEMS:
        for item_id in state.conversation.oldest_group():
            _remove(state, item_id)


def delete(state: SessionState, event: events.DeleteItem) -> None:
    """Removes an item.

    Raises:
        ProtocolError: there is none of this id, or a response is writing it.
    """
    entry = state.conversation.get(event.item_id)
    if entry is None:
        raise invalid_item("delete", event.item_id)
    if entry.item.status == "in_progress":
        raise ProtocolError(
            f"item {event.item_id!r} is being written by a response; cancel that first",
            code="item_delete_invalid_item_id",
            param="item_id",
        )
    _remove(state, event.item_id)


def retrieve(state: SessionState, event: events.RetrieveItem) -> None:
    """Sends an item, with its audio where that is still kept.

    Raises:
        ProtocolError: there is none of this id.
    """
    entry = state.conversation.get(event.item_id)
    if entry is None:
        raise invalid_item("retrieve", event.item_id)
    state.send(events.ItemRetrieved(item=with_audio(entry)))


def truncate(state: SessionState, event: events.TruncateItem) -> None:
    """Shortens a spoken item to what was played; its unheard text leaves the history.

    Raises:
        ProtocolError: no spoken item of this id, or a position past all that was sent.
    """
    entry = state.conversation.get(event.item_id)
    if entry is None or entry.playback is None:
        raise invalid_item("truncate", event.item_id)
    if event.content_index != 0:
        raise ProtocolError(
            "content_index must be 0: spoken items have one part", param="content_index"
        )
    end_ms = entry.playback.truncate(event.audio_end_ms)
    if end_ms is None:
        raise ProtocolError(
            f"audio_end_ms is {event.audio_end_ms}, but only {entry.playback.sent_ms} ms were "
            f"sent; at most {MAX_CLAIM_BEYOND_SENT_MS} ms more may be claimed",
            param="audio_end_ms",
        )
    form = entry.form
    state.conversation.cut_audio(entry, end_ms * sample_rate(form) // 1000 * sample_bytes(form))
    state.send(
        events.ItemTruncated(
            item_id=event.item_id, content_index=event.content_index, audio_end_ms=end_ms
        )
    )


def _entry(state: SessionState, item: Item) -> Entry:
    entry = Entry(item)
    if not isinstance(item, MessageItem):
        return entry
    content = []
    for part in item.content:
        if isinstance(part, InputAudio):
            entry.form = state.config.audio.input.format
            if part.audio:
                entry.audio += part.audio
            entry.transcript = part.transcript
            part = InputAudio(transcript=part.transcript)
        content.append(part)
    byte_rate = sample_rate(entry.form) * sample_bytes(entry.form)
    entry.audio_seconds = len(entry.audio) / byte_rate
    entry.awaits_transcript = bool(entry.audio) and entry.transcript is None
    entry.item = replace(item, content=content)
    return entry


def _remove(state: SessionState, item_id: str) -> None:
    prompting.forget_item(state, item_id)
    state.conversation.remove(item_id)
    state.pending.pop(item_id, None)
    state.send(events.ItemDeleted(item_id=item_id))
    responses.transcript_came(state, item_id)
