"""The response object of response.created and response.done, with its usage."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from antiphon_gateway.realtime.items import Item


class StatusError(Struct):
    type: str
    code: str
    message: str


class StatusDetails(Struct, omit_defaults=True):
    type: Literal["completed", "cancelled", "incomplete", "failed"]
    reason: str | None = None
    error: StatusError | None = None


class CachedTokens(Struct):
    text_tokens: int = 0
    audio_tokens: int = 0
    image_tokens: int = 0


class InputTokens(Struct):
    text_tokens: int = 0
    audio_tokens: int = 0
    image_tokens: int = 0
    cached_tokens: int = 0
    cached_tokens_details: CachedTokens = msgspec.field(default_factory=CachedTokens)


class OutputTokens(Struct):
    text_tokens: int = 0
    audio_tokens: int = 0


class Usage(Struct):
    total_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    input_token_details: InputTokens = msgspec.field(default_factory=InputTokens)
    output_token_details: OutputTokens = msgspec.field(default_factory=OutputTokens)


class Response(Struct, kw_only=True):
    """The response object of response.created and response.done."""

    id: str
    object: Literal["realtime.response"] = "realtime.response"
    status: Literal["in_progress", "completed", "cancelled", "incomplete", "failed"]
    status_details: StatusDetails | None
    output: list[Item]
    conversation_id: str | None
    output_modalities: list[str]
    audio: dict[str, Any]
    max_output_tokens: int | Literal["inf"]
    metadata: dict[str, str] | None
    usage: Usage | None
