"""Wire models of POST /v1/responses requests, and of the other requests of that resource."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from antiphon_gateway.openai.batches import Metadata
from antiphon_gateway.openai.chat import MAX_TOOLS, FunctionName
from antiphon_gateway.openai.common import Count, CountOrZero, Logprobs, ServiceTier, null
from antiphon_gateway.openai.generation import GenerationFields

LOGPROBS = "message.output_text.logprobs"

Include = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
"""Only the last one adds anything: what the others name is never made here, or always shown."""


class _Strict(Struct, forbid_unknown_fields=True, kw_only=True):
    """Undeclared fields are refused."""


class _Tagged(_Strict, tag_field="type"):
    """One of several forms."""


class FunctionTool(_Tagged, tag="function"):
    """A function that the model may call; other tools are not served."""

    name: FunctionName
    parameters: Raw = field(default_factory=null)
    strict: bool | None = None
    description: str | None = None
    output_schema: Any = UNSET
    """Has no effect: only programs that call tools would read it."""
    allowed_callers: list[Literal["direct"]] | UnsetType | None = UNSET
    defer_loading: bool | UnsetType | None = UNSET
    """Refused where true, and so is ``async``."""
    is_async: bool | UnsetType | None = field(default=UNSET, name="async")


class NamedFunction(_Tagged, tag="function"):
    """Exactly one call of this function."""

    name: FunctionName


class AllowedTools(_Tagged, tag="allowed_tools"):
    """Only these tools may be called."""

    mode: Literal["auto", "required"]
    tools: list[NamedFunction]


class TextFormat(_Tagged, tag="text"):
    """Free text."""


class JsonObjectFormat(_Tagged, tag="json_object"):
    """Any JSON object."""


class JsonSchemaFormat(_Tagged, tag="json_schema"):
    """JSON that matches a schema."""

    name: str
    schema: Raw = field(default_factory=null)
    description: str | None = None
    strict: bool | None = None


class TextConfig(_Strict):
    """The form of the text."""

    format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(_Strict):
    """How much the model reasons; summaries are never made, so only ``auto`` is taken."""

    effort: str | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | UnsetType | None = UNSET
    context: Literal["auto"] | UnsetType | None = UNSET
    mode: Literal["standard"] | UnsetType | None = UNSET


class StreamOptions(_Strict):
    """Has no effect: nothing is obfuscated."""

    include_obfuscation: bool | None = None


ToolChoice = Literal["none", "auto", "required"] | NamedFunction | AllowedTools


class ResponseRequest(GenerationFields, kw_only=True):
    """POST /v1/responses; null is the same as absent."""

    input: str | list[Raw] | None = None
    chat_template_kwargs: dict[str, Raw] | None = None
    include: list[Include] | None = None
    instructions: str | None = None
    max_output_tokens: Count | None = None
    metadata: Metadata | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    reasoning: Reasoning | None = None
    service_tier: ServiceTier | None = None
    store: bool | None = None
    stream_options: StreamOptions | None = None
    text: TextConfig | None = None
    thinking_token_budget: CountOrZero | None = None
    tool_choice: ToolChoice | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | None = None
    top_logprobs: Logprobs | None = None
    truncation: Literal["auto", "disabled"] | None = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether the output's log-probabilities are asked for."""
        return LOGPROBS in (self.include or ()) or self.top_logprobs is not None


class ItemList(Struct, kw_only=True):
    """GET /v1/responses/{id}/input_items."""

    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class ResponseDeleted(Struct):
    """DELETE /v1/responses/{id}."""

    id: str
    deleted: bool = True
    object: Literal["response"] = "response"


class RetrieveQuery(Struct):
    """How GET /v1/responses/{id} is answered."""

    stream: bool = False
    starting_after: int | None = None


class InputItemsQuery(Struct):
    """Which items GET /v1/responses/{id}/input_items lists."""

    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
