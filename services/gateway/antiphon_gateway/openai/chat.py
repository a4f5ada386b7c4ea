"""Wire model of POST /v1/chat/completions requests."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct, field

from antiphon_gateway.openai.common import (
    Choices,
    Count,
    CountOrZero,
    Logprobs,
    ServiceTier,
    StreamOptions,
    null,
)
from antiphon_gateway.openai.generation import GenerationFields

FunctionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]

MAX_TOOLS = 128


class TextPart(Struct, tag_field="type", tag="text"):
    """Plain text."""

    text: str


class RefusalPart(Struct, tag_field="type", tag="refusal"):
    """A refusal of a former assistant message; goes back into the prompt as text."""

    refusal: str


class ImageUrl(Struct):
    """An image as a data URL."""

    url: str
    detail: str | None = None


class ImagePart(Struct, tag_field="type", tag="image_url"):
    """An image."""

    image_url: ImageUrl


class InputAudio(Struct):
    """Audio as base64."""

    data: bytes
    format: Literal["wav", "mp3", "flac", "ogg", "pcm16"]


class AudioPart(Struct, tag_field="type", tag="input_audio"):
    """Audio."""

    input_audio: InputAudio


ContentPart = TextPart | RefusalPart | ImagePart | AudioPart


class FunctionCall(Struct):
    """Name and JSON arguments of a call."""

    name: FunctionName
    arguments: str


class ToolCall(Struct):
    """A call that the assistant made."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class AudioReference(Struct):
    """A former spoken answer, in place of its content."""

    id: str


class Message(Struct):
    """One message of the conversation."""

    role: Literal["system", "user", "assistant", "tool", "developer"]
    content: str | list[ContentPart] | None = None
    name: Annotated[str, Meta(max_length=64)] | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    audio: AudioReference | None = None
    function_call: Raw = field(default_factory=null)
    """The retired form of tool_calls; refused."""


class FunctionDefinition(Struct):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: Raw = field(default_factory=null)
    strict: bool | None = None


class Tool(Struct, tag_field="type", tag="function"):
    """A tool; only functions are served."""

    function: FunctionDefinition


class FunctionReference(Struct):
    """A function by name."""

    name: FunctionName


class NamedTool(Struct, tag_field="type", tag="function"):
    """Exactly one call of this function."""

    function: FunctionReference


class AllowedTools(Struct):
    """A subset of the tools."""

    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class AllowedToolsChoice(Struct, tag_field="type", tag="allowed_tools"):
    """Only these tools may be called."""

    allowed_tools: AllowedTools


class TextFormat(Struct, tag_field="type", tag="text"):
    """Free text."""


class JsonObjectFormat(Struct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchema(Struct):
    """A named schema."""

    name: str
    schema: Raw = field(default_factory=null)
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    """JSON that matches a schema."""

    json_schema: JsonSchema


class VoiceReference(Struct):
    """A voice by id."""

    id: str


class AudioOutput(Struct):
    """How the answer is spoken."""

    voice: str | VoiceReference
    format: Literal["wav", "mp3", "flac", "opus", "pcm16", "aac"]


class ChatRequest(GenerationFields, kw_only=True):
    """POST /v1/chat/completions; null is the same as absent."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    audio: AudioOutput | None = None
    chat_template_kwargs: dict[str, Raw] | None = None
    continue_final_message: bool | None = None
    logprobs: bool | None = None
    max_completion_tokens: Count | None = None
    max_tokens: Count | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    n: Choices | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    return_timing: bool | None = None
    service_tier: ServiceTier | None = None
    stream_options: StreamOptions | None = None
    thinking_token_budget: CountOrZero | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedToolsChoice | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    top_logprobs: Logprobs | None = None
