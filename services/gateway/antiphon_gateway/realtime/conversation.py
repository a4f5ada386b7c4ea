"""The conversation: items in one total order, with what the wire does not show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from antiphon_gateway.realtime.errors import BackendFailure, ProtocolError
from antiphon_gateway.realtime.formats import Pcm, WireFormat
from antiphon_gateway.realtime.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    Item,
    MessageItem,
    OutputAudio,
)
from antiphon_gateway.realtime.playback import Playback

MAX_ITEMS = 2000
MAX_KEPT_AUDIO_BYTES = 16 * 1024 * 1024
ROOT = "root"
"""``previous_item_id`` that stands for the front."""


@dataclass(slots=True)
class Entry:
    """An item and what belongs to it."""

    item: Item
    transcript: str | None = None
    """Recognised text of a user's audio, whether or not the client sees transcripts."""
    awaits_transcript: bool = False
    failure: BackendFailure | None = None
    """Why the audio could not be recognised."""
    audio: bytearray = field(default_factory=bytearray)
    """Kept audio, for retrieval."""
    form: WireFormat = field(default_factory=Pcm)
    """Format of the kept audio."""
    audio_seconds: float = 0.0
    playback: Playback | None = None
    is_silence: bool = False
    """The user said nothing for so long that the model speaks again."""
    in_prompt: bool = True
    """False for what is spoken without the model knowing, such as an acknowledgement."""

    @property
    def id(self) -> str:
        """The item's id; entries always have one."""
        return self.item.id or ""


class Conversation:
    """Entries by id, in order."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._order: list[str] = []
        self._with_audio: dict[str, Entry] = {}
        """Entries that keep audio, the one whose audio began first at the front."""
        self.kept_audio_bytes = 0

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Entry]:
        return (self._entries[item_id] for item_id in self._order)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._entries

    @property
    def last_id(self) -> str | None:
        """Id of the newest item."""
        return self._order[-1] if self._order else None

    def get(self, item_id: str) -> Entry | None:
        """The entry of an id, or None."""
        return self._entries.get(item_id)

    def previous_of(self, item_id: str) -> str | None:
        """Id of the item before; None at the front."""
        position = self._order.index(item_id)
        return self._order[position - 1] if position else None

    def next_of(self, item_id: str) -> str | None:
        """Id of the item after; None at the end."""
        position = self._order.index(item_id) + 1
        return self._order[position] if position < len(self._order) else None

    def insert(self, entry: Entry, previous_id: str | None) -> str | None:
        """Adds an entry.

        Args:
            entry: new; its item has an id.
            previous_id: after which item; None is the end, ``root`` the front.

        Returns:
            The id of the item before it.

        Raises:
            ProtocolError: duplicate id or unknown previous item.
        """
        if entry.id in self._entries:
            raise ProtocolError(
                f"an item with id {entry.id!r} exists already",
                code="item_create_duplicate_id",
                param="item.id",
            )
        if previous_id is None:
            position = len(self._order)
        elif previous_id == ROOT:
            position = 0
        elif previous_id in self._entries:
            position = self._order.index(previous_id) + 1
        else:
            raise ProtocolError(
                f"there is no item {previous_id!r} to insert after",
                code="item_create_invalid_previous_item_id",
                param="previous_item_id",
            )
        self._order.insert(position, entry.id)
        self._entries[entry.id] = entry
        if entry.audio:
            self._count_audio(entry, len(entry.audio))
        return self._order[position - 1] if position else None

    def remove(self, item_id: str) -> Entry | None:
        """Takes an entry out; None when there is none."""
        entry = self._entries.pop(item_id, None)
        if entry is not None:
            self._order.remove(item_id)
            self._with_audio.pop(item_id, None)
            self.kept_audio_bytes -= len(entry.audio)
        return entry

    def keep_audio(self, entry: Entry, data: bytes) -> None:
        """Keeps more audio of an entry, for retrieval."""
        entry.audio += data
        if entry.id in self._entries:
            self._count_audio(entry, len(data))

    def cut_audio(self, entry: Entry, length: int) -> None:
        """Drops kept audio past a length in bytes."""
        excess = len(entry.audio) - length
        if excess > 0:
            del entry.audio[length:]
            if entry.id in self._entries:
                self.kept_audio_bytes -= excess

    def _count_audio(self, entry: Entry, added: int) -> None:
        """Counts new audio, and drops the oldest while there is too much."""
        self._with_audio.setdefault(entry.id, entry)
        self.kept_audio_bytes += added
        while self.kept_audio_bytes > MAX_KEPT_AUDIO_BYTES and self._with_audio:
            oldest = self._with_audio.pop(next(iter(self._with_audio)))
            self.kept_audio_bytes -= len(oldest.audio)
            oldest.audio = bytearray()

    def has_call(self, call_id: str) -> bool:
        """Whether a function call with this id is in the conversation."""
        return any(
            isinstance(entry.item, FunctionCallItem) and entry.item.call_id == call_id
            for entry in self
        )

    def oldest_group(self) -> list[str]:
        """Ids that leave together when the oldest item has to go: a call takes its output.

        Items that a response is writing stay, and so do messages of the system.
        """
        for entry in self:
            item = entry.item
            if isinstance(item, MessageItem) and item.role == "system" and len(self) > 1:
                continue
            if item.status == "in_progress":
                continue
            group = [entry.id]
            if isinstance(item, FunctionCallItem):
                group += [
                    other.id
                    for other in self
                    if isinstance(other.item, FunctionCallOutputItem)
                    and other.item.call_id == item.call_id
                ]
            return group
        return self._order[:1]


def shown(entry: Entry) -> Item:
    """The item as events show it: shortened where it was truncated, without audio."""
    item = entry.item
    playback = entry.playback
    if isinstance(item, MessageItem) and playback and playback.truncated_ms is not None:
        parts = [
            OutputAudio(transcript=playback.heard_text(part.transcript or ""))
            if isinstance(part, OutputAudio)
            else part
            for part in item.content
        ]
        return replace(item, status="incomplete", content=parts)
    return item


def with_audio(entry: Entry) -> Item:
    """The item as retrieval shows it: with its audio where that is still kept."""
    item = shown(entry)
    if not entry.audio or not isinstance(item, MessageItem):
        return item
    parts = [
        replace(part, audio=bytes(entry.audio))
        if isinstance(part, InputAudio | OutputAudio)
        else part
        for part in item.content
    ]
    return replace(item, content=parts)
