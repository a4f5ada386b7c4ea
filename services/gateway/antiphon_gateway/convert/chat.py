"""Chat completion requests from the OpenAI wire to the domain."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Sequence

import msgspec
from antiphon_core.errors import InvalidArgument

from antiphon_gateway.convert.sampling import (
    at_most_one_constraint,
    sampling_of,
    stop_of,
)
from antiphon_gateway.domain import generation
from antiphon_gateway.domain.catalog import ModelInfo
from antiphon_gateway.domain.generation import Modality
from antiphon_gateway.openai import chat as wire
from antiphon_gateway.openai.common import MAX_SCHEMA_BYTES
from antiphon_gateway.openai.spoken import transcript_of

_DATA_URL = re.compile(r"data:([\w.+/-]+);base64,(.*)", re.DOTALL)
_AUDIO_ENCODINGS = {"ogg": "opus"}


def chat_request(
    request: wire.ChatRequest, model: ModelInfo, timeout: float
) -> generation.GenerateRequest:
    """The generation that a chat request asks for.

    Args:
        request: the validated body.
        model: the served model it resolved to.
        timeout: seconds.

    Raises:
        InvalidArgument: a combination of fields, or a content part, that cannot be served.
    """
    return generation.GenerateRequest(
        input=chat_input(request, model),
        model=model.id,
        sampling=sampling_of(request),
        stop=stop_of(request, _max_tokens(request)),
        choice_count=request.n or 1,
        logprobs=_logprobs(request),
        constraint=_constraint(request),
        timeout=timeout,
    )


def chat_input(request: wire.ChatRequest, model: ModelInfo) -> generation.ChatInput:
    """Messages, tools and template settings."""
    if not model.chat:
        raise InvalidArgument(
            f"model {model.id!r} has no chat template; use /v1/completions",
            reason="TEMPLATE_ERROR",
            field="messages",
        )
    kwargs = request.chat_template_kwargs
    return generation.ChatInput(
        messages=messages_of(request.messages, model),
        tools=tools_of(request.tools or ()),
        tool_choice=_tool_choice(request),
        template_kwargs=msgspec.json.encode(kwargs).decode() if kwargs else "",
        continue_final_message=bool(request.continue_final_message),
        reasoning_effort=request.reasoning_effort or "",
        thinking_budget=request.thinking_token_budget,
    )


def messages_of(
    messages: Sequence[wire.Message], model: ModelInfo
) -> tuple[generation.Message, ...]:
    """The conversation; media parts only where the model reads them."""
    return tuple(_message(item, f"messages[{i}]", model) for i, item in enumerate(messages))


def tools_of(tools: Sequence[wire.Tool]) -> tuple[generation.Tool, ...]:
    """The offered functions."""
    found = []
    for index, tool in enumerate(tools):
        function = tool.function
        path = f"tools[{index}].function.parameters"
        found.append(
            generation.Tool(
                name=function.name,
                description=function.description or "",
                parameters=_schema_text(function.parameters, path),
                strict=bool(function.strict),
            )
        )
    return tuple(found)


def _message(item: wire.Message, path: str, model: ModelInfo) -> generation.Message:
    if bytes(item.function_call) != b"null":
        raise InvalidArgument(
            f"{path}.function_call is not served here; send tool_calls",
            reason="UNSUPPORTED_OPTION",
            field=f"{path}.function_call",
        )
    if item.role == "tool" and not item.tool_call_id:
        raise InvalidArgument(
            f"{path}.tool_call_id is required for role tool",
            reason="MISSING_FIELD",
            field=f"{path}.tool_call_id",
        )
    parts = _parts(item, path, model)
    if not parts and not item.tool_calls and item.role != "assistant":
        raise InvalidArgument(
            f"{path}.content is required", reason="MISSING_FIELD", field=f"{path}.content"
        )
    return generation.Message(
        role=generation.Role(item.role),
        parts=parts,
        name=item.name or "",
        tool_call_id=item.tool_call_id or "",
        tool_calls=tuple(
            generation.ToolCall(call.id, call.function.name, call.function.arguments)
            for call in item.tool_calls or ()
        ),
        reasoning=item.reasoning_content or item.reasoning or "",
    )


def _parts(item: wire.Message, path: str, model: ModelInfo) -> tuple[generation.Content, ...]:
    content = item.content
    if item.audio is not None:
        if content or item.role != "assistant":
            raise InvalidArgument(
                f"{path}.audio takes the place of an assistant's content", field=f"{path}.audio"
            )
        return (transcript_of(item.audio.id, f"{path}.audio.id"),)
    if content is None:
        return (item.refusal,) if item.refusal else ()
    if isinstance(content, str):
        return (content,)
    return tuple(
        _part(part, f"{path}.content[{index}]", model) for index, part in enumerate(content)
    )


def _part(part: wire.ContentPart, path: str, model: ModelInfo) -> generation.Content:
    if isinstance(part, wire.TextPart):
        return part.text
    if isinstance(part, wire.RefusalPart):
        return part.refusal
    if isinstance(part, wire.ImagePart):
        _require_input(Modality.IMAGE, path, model)
        return _image(part.image_url.url, f"{path}.image_url.url")
    _require_input(Modality.AUDIO, path, model)
    audio_format = part.input_audio.format
    return generation.AudioContent(
        part.input_audio.data, _AUDIO_ENCODINGS.get(audio_format, audio_format)
    )


def _require_input(modality: Modality, path: str, model: ModelInfo) -> None:
    if modality not in model.input_modalities:
        reads = [str(item) for item in model.input_modalities] or ["text"]
        raise InvalidArgument(
            f"{path}: model {model.id!r} does not read {modality}; it reads {', '.join(reads)}",
            reason="UNSUPPORTED_MODALITY",
            field=path,
            allowed=reads,
        )


def _image(url: str, path: str) -> generation.ImageContent:
    match = _DATA_URL.fullmatch(url)
    if match is None:
        raise InvalidArgument(
            f"{path} must be a data URL (data:image/png;base64,...); URLs are not fetched",
            reason="UNSUPPORTED_OPTION",
            field=path,
        )
    try:
        data = b64decode(match.group(2), validate=True)
    except binascii.Error:
        raise InvalidArgument(
            f"{path} is not valid base64", reason="INVALID_IMAGE", field=path
        ) from None
    return generation.ImageContent(data, match.group(1))


def _max_tokens(request: wire.ChatRequest) -> int | None:
    newer, older = request.max_completion_tokens, request.max_tokens
    if newer is not None and older is not None and newer != older:
        raise InvalidArgument(
            "max_tokens and max_completion_tokens differ; send one of them", field="max_tokens"
        )
    return older if newer is None else newer


def _logprobs(request: wire.ChatRequest) -> int | None:
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs is not None:
        raise InvalidArgument("top_logprobs needs logprobs: true", field="top_logprobs")
    return None


def _tool_choice(request: wire.ChatRequest) -> generation.ToolChoice | None:
    choice = request.tool_choice
    single = request.parallel_tool_calls is False
    if not request.tools:
        if choice not in (None, "none", "auto"):
            raise InvalidArgument("tool_choice needs tools", field="tool_choice")
        return None
    names = {tool.function.name for tool in request.tools}
    if choice is None or isinstance(choice, str):
        mode = generation.ToolMode(choice or "auto")
        return generation.ToolChoice(mode, single_call=single)
    if isinstance(choice, wire.NamedTool):
        _require_known(choice.function.name, names, "tool_choice.function.name")
        return generation.ToolChoice(
            generation.ToolMode.NAMED, name=choice.function.name, single_call=single
        )
    allowed = tuple(tool.function.name for tool in choice.allowed_tools.tools)
    for index, name in enumerate(allowed):
        _require_known(name, names, f"tool_choice.allowed_tools.tools[{index}].function.name")
    return generation.ToolChoice(
        generation.ToolMode(choice.allowed_tools.mode), allowed=allowed, single_call=single
    )


def _require_known(name: str, names: set[str], path: str) -> None:
    if name not in names:
        raise InvalidArgument(
            f"{path}: no tool named {name!r} is offered", field=path, allowed=sorted(names)
        )


def _constraint(request: wire.ChatRequest) -> generation.Constraint | None:
    form = request.response_format
    found = at_most_one_constraint(request)
    if form is None or isinstance(form, wire.TextFormat):
        return found
    if found is not None:
        raise InvalidArgument(
            "response_format and regex, grammar or choice exclude each other",
            field="response_format",
        )
    if isinstance(form, wire.JsonObjectFormat):
        return generation.Constraint(generation.ConstraintKind.JSON_OBJECT)
    path = "response_format.json_schema.schema"
    schema = _schema_text(form.json_schema.schema, path)
    if not schema:
        raise InvalidArgument(f"{path} is required", reason="MISSING_FIELD", field=path)
    return generation.Constraint(
        generation.ConstraintKind.JSON_SCHEMA, schema, strict=bool(form.json_schema.strict)
    )


def _schema_text(raw: msgspec.Raw, path: str) -> str:
    """The JSON text of a schema as it was sent; empty for null."""
    data = bytes(raw)
    if len(data) > MAX_SCHEMA_BYTES:
        raise InvalidArgument(
            f"{path} has {len(data)} bytes; at most {MAX_SCHEMA_BYTES} are allowed",
            reason="TOO_LARGE",
            field=path,
            metadata={"limit": str(MAX_SCHEMA_BYTES), "observed": str(len(data))},
        )
    text = data.decode()
    if text == "null":
        return ""
    if not text.startswith("{"):
        raise InvalidArgument(f"{path} must be a JSON schema object", field=path)
    return text
