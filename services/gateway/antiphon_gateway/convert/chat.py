"""Chat completion requests from the OpenAI wire to the domain."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from antiphon_core.errors import InvalidArgument

from antiphon_gateway.convert.content import audio_content, image_content
from antiphon_gateway.convert.sampling import (
    at_most_one_constraint,
    sampling_of,
    stop_of,
)
from antiphon_gateway.convert.tools import (
    allowed_choice,
    free_choice,
    named_choice,
    no_tools,
    schema_constraint,
    schema_text,
)
from antiphon_gateway.domain import generation
from antiphon_gateway.domain.catalog import ModelInfo
from antiphon_gateway.openai import chat as wire
from antiphon_gateway.openai.spoken import transcript_of


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
        speech=model.code_format is not None and "audio" in (request.modalities or ()),
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
                parameters=schema_text(function.parameters, path),
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
        return image_content(part.image_url.url, path, f"{path}.image_url.url", model)
    return audio_content(part.input_audio.data, part.input_audio.format, path, model)


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
    names = {tool.function.name for tool in request.tools or ()}
    if choice is None or isinstance(choice, str):
        return free_choice(choice, has_tools=bool(names), single=single)
    if not names:
        raise no_tools()
    if isinstance(choice, wire.NamedTool):
        return named_choice(choice.function.name, names, "tool_choice.function.name", single=single)
    return allowed_choice(
        choice.allowed_tools.mode,
        [tool.function.name for tool in choice.allowed_tools.tools],
        names,
        "tool_choice.allowed_tools.tools[{}].function.name",
        single=single,
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
    return schema_constraint(
        form.json_schema.schema,
        "response_format.json_schema.schema",
        strict=form.json_schema.strict,
    )
