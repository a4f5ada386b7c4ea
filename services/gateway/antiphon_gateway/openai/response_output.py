"""The response object, and the events that a stream builds it with."""

from __future__ import annotations

from typing import Any, Literal

from antiphon_core.errors import AntiphonError
from msgspec import Struct, field

from antiphon_gateway.domain import generation
from antiphon_gateway.openai.chat_output import TokenLogprob, encode
from antiphon_gateway.openai.errors import RATE_LIMIT, SERVER, row_of
from antiphon_gateway.openai.response_items import (
    FunctionCallItem,
    MessageItem,
    OutputPart,
    ReasoningItem,
)
from antiphon_gateway.openai.responses import (
    FunctionTool,
    Reasoning,
    ResponseRequest,
    TextConfig,
    TextFormat,
    ToolChoice,
)

OutputItem = MessageItem | FunctionCallItem | ReasoningItem
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputTokensDetails(Struct):
    """Parts of the input tokens."""

    cached_tokens: int
    cache_write_tokens: int = 0
    """Writing into the prefix cache is not charged for."""


class OutputTokensDetails(Struct):
    """Parts of the output tokens."""

    reasoning_tokens: int


class ResponseUsage(Struct):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(Struct):
    """Why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(Struct):
    """Why a response ended early."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class Response(Struct, kw_only=True):
    """A response as clients see it, and as it is kept."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: ResponseStatus = "in_progress"
    background: bool = False
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    model: str
    output: list[OutputItem] = field(default_factory=list)
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: Reasoning
    service_tier: str = "default"
    store: bool
    temperature: float | None = None
    text: TextConfig
    tool_choice: ToolChoice = "auto"
    tools: list[FunctionTool] = field(default_factory=list)
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: None = None


def new_response(
    request: ResponseRequest, response_id: str, *, created_at: int, model: str, store: bool
) -> Response:
    """The response to a request before it has any output.

    Args:
        request: its settings are shown in the response.
        response_id: of the response.
        created_at: seconds since the epoch.
        model: as requested, else the one that serves it.
        store: whether it will be kept.
    """
    text = request.text or TextConfig()
    return Response(
        id=response_id,
        created_at=created_at,
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        metadata=request.metadata or {},
        model=model,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        reasoning=request.reasoning or Reasoning(),
        service_tier="flex" if request.service_tier == "flex" else "default",
        store=store,
        temperature=request.temperature,
        text=TextConfig(format=text.format or TextFormat(), verbosity=text.verbosity or "medium"),
        tool_choice=request.tool_choice or "auto",
        tools=request.tools or [],
        top_logprobs=request.top_logprobs or 0,
        top_p=request.top_p,
        truncation=request.truncation or "disabled",
    )


def response_usage(usage: generation.Usage) -> ResponseUsage:
    """The usage object; what nobody counted is 0."""
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(usage.cached_tokens),
        output_tokens=usage.output_tokens,
        output_tokens_details=OutputTokensDetails(usage.reasoning_tokens or 0),
        total_tokens=usage.prompt_tokens + usage.output_tokens,
    )


def response_error(error: AntiphonError) -> ResponseError:
    """The failure of a response whose status was sent already."""
    row = row_of(error)
    if row.type == RATE_LIMIT:
        return ResponseError("rate_limit_exceeded", error.message)
    return ResponseError("server_error" if row.type == SERVER else "invalid_prompt", error.message)


class Event(Struct, tag_field="type", kw_only=True):
    """One event of a stream; ``sequence_number`` counts from 0."""

    sequence_number: int


class ResponseEvent(Event, kw_only=True):
    """What happened to the response as a whole."""

    response: Response


class Created(ResponseEvent, tag="response.created"):
    """The first event."""


class InProgress(ResponseEvent, tag="response.in_progress"):
    """The model is at work."""


class Completed(ResponseEvent, tag="response.completed"):
    """The last event of a response that is whole."""


class Incomplete(ResponseEvent, tag="response.incomplete"):
    """The last event of a response that was cut off."""


class Failed(ResponseEvent, tag="response.failed"):
    """The last event of a response that failed."""


class ItemEvent(Event, kw_only=True):
    """What happened to an item of the output."""

    output_index: int
    item: OutputItem


class ItemAdded(ItemEvent, tag="response.output_item.added"):
    """An item begins."""


class ItemDone(ItemEvent, tag="response.output_item.done"):
    """An item is whole."""


class PartEvent(Event, kw_only=True):
    """What happened to a part of an item's content."""

    item_id: str
    output_index: int
    content_index: int = 0
    part: OutputPart


class PartAdded(PartEvent, kw_only=True, tag="response.content_part.added"):
    """A part begins."""


class PartDone(PartEvent, kw_only=True, tag="response.content_part.done"):
    """A part is whole."""


class TextDelta(Event, kw_only=True, tag="response.output_text.delta"):
    """More visible text."""

    item_id: str
    output_index: int
    content_index: int = 0
    delta: str
    logprobs: list[TokenLogprob] = field(default_factory=list)


class TextDone(Event, kw_only=True, tag="response.output_text.done"):
    """All visible text of a part."""

    item_id: str
    output_index: int
    content_index: int = 0
    text: str
    logprobs: list[TokenLogprob] = field(default_factory=list)


class ReasoningDelta(Event, kw_only=True, tag="response.reasoning_text.delta"):
    """More reasoning."""

    item_id: str
    output_index: int
    content_index: int = 0
    delta: str


class ReasoningDone(Event, kw_only=True, tag="response.reasoning_text.done"):
    """All text of a reasoning part."""

    item_id: str
    output_index: int
    content_index: int = 0
    text: str


class ArgumentsDelta(Event, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(Event, kw_only=True, tag="response.function_call_arguments.done"):
    """All arguments of a call."""

    item_id: str
    output_index: int
    name: str
    arguments: str


EVENTS: tuple[type[Event], ...] = (
    *(Created, InProgress, ItemAdded, PartAdded),
    *(TextDelta, TextDone, ReasoningDelta, ReasoningDone, ArgumentsDelta, ArgumentsDone),
    *(PartDone, ItemDone, Completed, Incomplete, Failed),
)


def event_frame(event: Event) -> bytes:
    """One server-sent event with its name."""
    name: Any = event.__struct_config__.tag
    return b"event: " + name.encode() + b"\ndata: " + encode(event) + b"\n\n"
