"""Events of the realtime wire as tagged unions; base64 fields are ``bytes`` on this side."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon_gateway.realtime.items import Item, ItemReference
from antiphon_gateway.realtime.response_object import Response

MAX_EVENT_ID = 512
EventId = Annotated[str, Meta(max_length=MAX_EVENT_ID)]


class _ClientEvent(Struct, frozen=True, kw_only=True, tag_field="type"):
    event_id: EventId | None = None


class SessionUpdate(_ClientEvent, frozen=True, tag="session.update"):
    """Changes the session's configuration."""

    session: dict[str, Any]


class AppendAudio(_ClientEvent, frozen=True, tag="input_audio_buffer.append"):
    """The next input audio."""

    audio: bytes


class CommitAudio(_ClientEvent, frozen=True, tag="input_audio_buffer.commit"):
    """Makes a user item of the buffered audio."""


class ClearAudio(_ClientEvent, frozen=True, tag="input_audio_buffer.clear"):
    """Drops the buffered audio and all turn state."""


class CreateItem(_ClientEvent, frozen=True, tag="conversation.item.create"):
    """Inserts an item."""

    item: Item
    previous_item_id: str | None = None


class DeleteItem(_ClientEvent, frozen=True, tag="conversation.item.delete"):
    """Removes an item."""

    item_id: str


class RetrieveItem(_ClientEvent, frozen=True, tag="conversation.item.retrieve"):
    """Asks for an item with its audio."""

    item_id: str


class TruncateItem(_ClientEvent, frozen=True, tag="conversation.item.truncate"):
    """Shortens spoken output to what was heard."""

    item_id: str
    content_index: Annotated[int, Meta(ge=0)]
    audio_end_ms: Annotated[int, Meta(ge=0)]


class CreateResponse(_ClientEvent, frozen=True, tag="response.create"):
    """Starts a response."""

    response: dict[str, Any] | None = None


class CancelResponse(_ClientEvent, frozen=True, tag="response.cancel"):
    """Ends a response."""

    response_id: str | None = None


class ClearOutput(_ClientEvent, frozen=True, tag="output_audio_buffer.clear"):
    """Drops output audio that has not been sent."""


ClientEvent = (
    SessionUpdate
    | AppendAudio
    | CommitAudio
    | ClearAudio
    | CreateItem
    | DeleteItem
    | RetrieveItem
    | TruncateItem
    | CreateResponse
    | CancelResponse
    | ClearOutput
)


class _ServerEvent(Struct, kw_only=True, tag_field="type"):
    event_id: str = ""


class SessionCreated(_ServerEvent, tag="session.created"):
    session: dict[str, Any]


class SessionUpdated(_ServerEvent, tag="session.updated"):
    session: dict[str, Any]


class Conversation(Struct):
    id: str
    object: Literal["realtime.conversation"] = "realtime.conversation"


class ConversationCreated(_ServerEvent, tag="conversation.created"):
    conversation: Conversation


class ItemAdded(_ServerEvent, tag="conversation.item.added"):
    previous_item_id: str | None
    item: Item


class ItemCreated(_ServerEvent, tag="conversation.item.created"):
    previous_item_id: str | None
    item: Item


class ItemDone(_ServerEvent, tag="conversation.item.done"):
    previous_item_id: str | None
    item: Item


class ItemRetrieved(_ServerEvent, tag="conversation.item.retrieved"):
    item: Item


class ItemDeleted(_ServerEvent, tag="conversation.item.deleted"):
    item_id: str


class ItemTruncated(_ServerEvent, tag="conversation.item.truncated"):
    item_id: str
    content_index: int
    audio_end_ms: int


class TranscriptionDelta(_ServerEvent, tag="conversation.item.input_audio_transcription.delta"):
    item_id: str
    content_index: int
    delta: str


class Logprob(Struct, frozen=True):
    """A recognised word with the natural logarithm of its probability."""

    token: str
    bytes: list[int]
    logprob: float


class DurationUsage(Struct):
    seconds: float
    type: Literal["duration"] = "duration"


class TranscriptionCompleted(
    _ServerEvent, tag="conversation.item.input_audio_transcription.completed"
):
    item_id: str
    content_index: int
    transcript: str
    usage: DurationUsage
    logprobs: list[Logprob] | UnsetType = UNSET


class TranscriptionSegment(_ServerEvent, tag="conversation.item.input_audio_transcription.segment"):
    """Who spoke a part of an item; times in seconds from the item's first sample."""

    id: str
    item_id: str
    content_index: int
    text: str
    speaker: str
    start: float
    end: float


class TranscriptionError(Struct):
    type: str
    code: str
    message: str
    param: str | None = None


class TranscriptionFailed(_ServerEvent, tag="conversation.item.input_audio_transcription.failed"):
    item_id: str
    content_index: int
    error: TranscriptionError


class AudioCommitted(_ServerEvent, tag="input_audio_buffer.committed"):
    previous_item_id: str | None
    item_id: str


class AudioCleared(_ServerEvent, tag="input_audio_buffer.cleared"):
    pass


class SpeechStarted(_ServerEvent, tag="input_audio_buffer.speech_started"):
    audio_start_ms: int
    item_id: str


class SpeechStopped(_ServerEvent, tag="input_audio_buffer.speech_stopped"):
    audio_end_ms: int
    item_id: str


class TimeoutTriggered(_ServerEvent, tag="input_audio_buffer.timeout_triggered"):
    audio_start_ms: int
    audio_end_ms: int
    item_id: str


class RateLimit(Struct, frozen=True):
    """What is left of one limit."""

    name: str
    limit: int
    remaining: int
    reset_seconds: float


class RateLimitsUpdated(_ServerEvent, tag="rate_limits.updated"):
    rate_limits: list[RateLimit]


class ResponseCreated(_ServerEvent, tag="response.created"):
    response: Response


class ResponseDone(_ServerEvent, tag="response.done"):
    response: Response


class OutputItemAdded(_ServerEvent, tag="response.output_item.added"):
    response_id: str
    output_index: int
    item: Item


class OutputItemDone(_ServerEvent, tag="response.output_item.done"):
    response_id: str
    output_index: int
    item: Item


class OutputStarted(_ServerEvent, tag="output_audio_buffer.started"):
    response_id: str


class OutputStopped(_ServerEvent, tag="output_audio_buffer.stopped"):
    response_id: str


class OutputCleared(_ServerEvent, tag="output_audio_buffer.cleared"):
    response_id: str


class TextPart(Struct, tag="text", tag_field="type"):
    text: str


class AudioPart(Struct, tag="audio", tag_field="type"):
    transcript: str


class _ContentEvent(_ServerEvent, kw_only=True):
    response_id: str
    item_id: str
    output_index: int
    content_index: int = 0


class ContentPartAdded(_ContentEvent, tag="response.content_part.added"):
    part: TextPart | AudioPart


class ContentPartDone(_ContentEvent, tag="response.content_part.done"):
    part: TextPart | AudioPart


class TextDelta(_ContentEvent, tag="response.output_text.delta"):
    delta: str


class TextDone(_ContentEvent, tag="response.output_text.done"):
    text: str


class AudioDelta(_ContentEvent, tag="response.output_audio.delta"):
    delta: bytes


class AudioDone(_ContentEvent, tag="response.output_audio.done"):
    pass


class TranscriptDelta(_ContentEvent, tag="response.output_audio_transcript.delta"):
    delta: str


class TranscriptDone(_ContentEvent, tag="response.output_audio_transcript.done"):
    transcript: str


class ArgumentsDelta(_ServerEvent, tag="response.function_call_arguments.delta"):
    response_id: str
    item_id: str
    output_index: int
    call_id: str
    delta: str


class ArgumentsDone(_ServerEvent, tag="response.function_call_arguments.done"):
    response_id: str
    item_id: str
    output_index: int
    call_id: str
    name: str
    arguments: str


class ErrorBody(Struct):
    type: str
    code: str | None
    message: str
    param: str | None
    event_id: str | None


class Error(_ServerEvent, tag="error"):
    error: ErrorBody


ServerEvent = _ServerEvent
"""Base of every event that a server sends."""

InputEntry = Item | ItemReference
"""One entry of a response's own input."""

encode = msgspec.json.Encoder().encode
"""Server event to UTF-8 JSON; ``bytes`` fields become base64."""
