"""Responses requests from the OpenAI wire to the domain."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from antiphon_core.errors import InvalidArgument
from msgspec import Struct
from msgspec.structs import replace

from antiphon_gateway.convert.content import audio_content, image_content
from antiphon_gateway.convert.sampling import at_most_one_constraint, sampling_of, stop_of
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
from antiphon_gateway.domain.generation import Content, Message, Role
from antiphon_gateway.openai import response_items as items
from antiphon_gateway.openai import responses as wire

PREVIOUS = "previous_response_id"
INSTRUCTIONS = "instructions"


class Conversation(Struct, frozen=True):
    """Messages, and for each the field of the request that it comes from."""

    messages: tuple[Message, ...]
    sources: tuple[str, ...]


def response_request(
    request: wire.ResponseRequest,
    messages: Sequence[Message],
    model: ModelInfo,
    timeout: float,
) -> generation.GenerateRequest:
    """The generation that a responses request asks for.

    Args:
        request: the validated body.
        messages: see ``conversation_of``.
        model: the served model it resolved to.
        timeout: seconds.

    Raises:
        InvalidArgument: a combination of fields that cannot be served.
    """
    if not model.chat:
        raise InvalidArgument(
            f"model {model.id!r} has no chat template; use /v1/completions",
            reason="TEMPLATE_ERROR",
            field="input",
        )
    kwargs = request.chat_template_kwargs
    reasoning = request.reasoning
    return generation.GenerateRequest(
        input=generation.ChatInput(
            messages=messages,
            tools=_tools(request),
            tool_choice=_tool_choice(request),
            template_kwargs=msgspec.json.encode(kwargs).decode() if kwargs else "",
            reasoning_effort=(reasoning.effort if reasoning else None) or "",
            thinking_budget=request.thinking_token_budget,
        ),
        model=model.id,
        sampling=sampling_of(request),
        stop=stop_of(request, request.max_output_tokens),
        logprobs=(request.top_logprobs or 0) if request.wants_logprobs else None,
        constraint=_constraint(request),
        timeout=timeout,
    )


def conversation_of(
    instructions: str | None,
    history: Sequence[items.Item],
    given: Sequence[items.Item],
    paths: Sequence[str],
    model: ModelInfo,
) -> Conversation:
    """The prompt's messages: instructions, what came before, what the request brings.

    Reasoning, text and calls that follow each other are one message of the assistant, as they
    were when the model made them.

    Args:
        instructions: of this request only.
        history: items of the former responses.
        given: items of this request, references resolved.
        paths: where each of those stands in the request.
        model: that will read it.

    Raises:
        InvalidArgument: naming the item, or the part of one, that cannot be served.
    """
    builder = _Builder(model)
    if instructions:
        builder.add(Message(Role.SYSTEM, (instructions,)), INSTRUCTIONS)
    for item in history:
        builder.item(item, PREVIOUS)
    for item, path in zip(given, paths, strict=True):
        builder.item(item, path)
    return Conversation(tuple(builder.messages), tuple(builder.sources))


class _Builder:
    """Joins items into messages."""

    def __init__(self, model: ModelInfo) -> None:
        self.messages: list[Message] = []
        self.sources: list[str] = []
        self._model = model
        self._called: set[str] = set()
        """Ids of the calls so far."""

    def add(self, message: Message, source: str) -> None:
        """Appends a message."""
        self.messages.append(message)
        self.sources.append(source)

    def item(self, item: items.Item, path: str) -> None:
        """Appends an item.

        Raises:
            InvalidArgument: it cannot be served.
        """
        if isinstance(item, items.MessageItem):
            self._message(item, path)
        elif isinstance(item, items.ReasoningItem):
            reasoning = "".join(part.text for part in item.content or item.summary)
            if reasoning:
                self.add(Message(Role.ASSISTANT, reasoning=reasoning), path)
        elif isinstance(item, items.FunctionCallItem):
            self._called.add(item.call_id)
            call = generation.ToolCall(item.call_id, item.name, item.arguments)
            last = self._last_answer()
            if last is None:
                self.add(Message(Role.ASSISTANT, tool_calls=(call,)), path)
            else:
                self.messages[-1] = replace(last, tool_calls=(*last.tool_calls, call))
        else:
            self._result(item, path)

    def _message(self, item: items.MessageItem, path: str) -> None:
        parts = self._parts(item.content, f"{path}.content")
        last = self._last_answer()
        if item.role == "assistant" and last is not None and not (last.parts or last.tool_calls):
            self.messages[-1] = replace(last, parts=parts)
            return
        if not parts and item.role != "assistant":
            raise InvalidArgument(
                f"{path}.content is required", reason="MISSING_FIELD", field=f"{path}.content"
            )
        self.add(Message(Role(item.role), parts), path)

    def _result(self, item: items.FunctionCallOutputItem, path: str) -> None:
        if item.call_id not in self._called:
            raise InvalidArgument(
                f"{path}.call_id: there is no function call {item.call_id!r} before it",
                field=f"{path}.call_id",
            )
        parts = self._parts(item.output, f"{path}.output")
        self.add(Message(Role.TOOL, parts, tool_call_id=item.call_id), path)

    def _last_answer(self) -> Message | None:
        """The message of the assistant that the conversation ends with, if it does."""
        last = self.messages[-1] if self.messages else None
        return last if last is not None and last.role is Role.ASSISTANT else None

    def _parts(self, content: str | Sequence[items.ContentPart], path: str) -> tuple[Content, ...]:
        if isinstance(content, str):
            return (content,)
        return tuple(self._part(part, f"{path}[{index}]") for index, part in enumerate(content))

    def _part(self, part: items.ContentPart, path: str) -> Content:
        if isinstance(part, items.InputText | items.OutputText):
            return part.text
        if isinstance(part, items.Refusal):
            return part.refusal
        if isinstance(part, items.AudioPart):
            audio = part.input_audio
            return audio_content(audio.data, audio.format, path, self._model)
        if part.file_id:
            raise InvalidArgument(
                f"{path}.file_id is not served here; send image_url with a data URL",
                reason="UNSUPPORTED_OPTION",
                field=f"{path}.file_id",
            )
        if not part.image_url:
            raise InvalidArgument(
                f"{path}.image_url is required", reason="MISSING_FIELD", field=f"{path}.image_url"
            )
        return image_content(part.image_url, path, f"{path}.image_url", self._model)


def _tools(request: wire.ResponseRequest) -> tuple[generation.Tool, ...]:
    return tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(request.tools or ()))


def _tool(tool: wire.FunctionTool, path: str) -> generation.Tool:
    for name, value in (("defer_loading", tool.defer_loading), ("async", tool.is_async)):
        if value:
            raise InvalidArgument(
                f"{path}.{name} is not served here; allowed: false",
                reason="UNSUPPORTED_OPTION",
                field=f"{path}.{name}",
                allowed=("false",),
            )
    return generation.Tool(
        name=tool.name,
        description=tool.description or "",
        parameters=schema_text(tool.parameters, f"{path}.parameters"),
        strict=bool(tool.strict),
    )


def _tool_choice(request: wire.ResponseRequest) -> generation.ToolChoice | None:
    choice = request.tool_choice
    single = request.parallel_tool_calls is False
    names = {tool.name for tool in request.tools or ()}
    if choice is None or isinstance(choice, str):
        return free_choice(choice, has_tools=bool(names), single=single)
    if not names:
        raise no_tools()
    if isinstance(choice, wire.NamedFunction):
        return named_choice(choice.name, names, "tool_choice.name", single=single)
    return allowed_choice(
        choice.mode,
        [tool.name for tool in choice.tools],
        names,
        "tool_choice.tools[{}].name",
        single=single,
    )


def _constraint(request: wire.ResponseRequest) -> generation.Constraint | None:
    form = request.text.format if request.text else None
    found = at_most_one_constraint(request)
    if form is None or isinstance(form, wire.TextFormat):
        return found
    if found is not None:
        raise InvalidArgument(
            "text.format and regex, grammar or choice exclude each other", field="text.format"
        )
    if isinstance(form, wire.JsonObjectFormat):
        return generation.Constraint(generation.ConstraintKind.JSON_OBJECT)
    return schema_constraint(form.schema, "text.format.schema", strict=form.strict)
