"""Chat input: messages, tools and template variables."""

from __future__ import annotations

import json
from typing import Any

from antiphon.llm.v1 import chat_pb2, generate_pb2
from antiphon_core.errors import InvalidArgument

from antiphon_llm.front.conversation import Conversation, Message, ToolCall
from antiphon_llm.front.requests import ChatInput
from antiphon_llm.front.tools import Tool, ToolOptions

from .common import optional

_ROLES = {
    chat_pb2.CHAT_ROLE_SYSTEM: "system",
    chat_pb2.CHAT_ROLE_USER: "user",
    chat_pb2.CHAT_ROLE_ASSISTANT: "assistant",
    chat_pb2.CHAT_ROLE_TOOL: "tool",
    chat_pb2.CHAT_ROLE_DEVELOPER: "developer",
}


_CHOICES = {
    chat_pb2.ToolChoice.MODE_NONE: "none",
    chat_pb2.ToolChoice.MODE_AUTO: "auto",
    chat_pb2.ToolChoice.MODE_REQUIRED: "required",
    chat_pb2.ToolChoice.MODE_NAMED: "named",
}


def chat_input(message: generate_pb2.ChatInput) -> ChatInput:
    """Messages, tools and template variables.

    Raises:
        InvalidArgument: media parts, or malformed JSON.
    """
    return ChatInput(
        conversation=Conversation(
            messages=[_message(place, item) for place, item in enumerate(message.messages)],
            template_kwargs=_template_kwargs(message.template_kwargs_json),
            continue_final_message=message.continue_final_message,
            reasoning_effort=message.reasoning_effort,
        ),
        tools=_tools(message),
        thinking_budget=optional(message, "thinking_budget"),
    )


def _tools(message: generate_pb2.ChatInput) -> ToolOptions:
    choice = message.tool_choice
    return ToolOptions(
        tools=[
            Tool(tool.name, tool.description, tool.parameters_json, tool.strict)
            for tool in message.tools
        ],
        mode=_CHOICES.get(choice.mode, "auto" if message.tools else "none"),
        name=choice.name,
        allowed=list(choice.allowed),
        single_call=choice.single_call,
    )


def _message(place: int, message: chat_pb2.ChatMessage) -> Message:
    texts = []
    for index, part in enumerate(message.parts):
        kind = part.WhichOneof("part")
        if kind is None:
            field = f"chat.messages[{place}].parts[{index}]"
            raise InvalidArgument(f"{field} is empty", reason="MISSING_FIELD", field=field)
        if kind != "text":
            field = f"chat.messages[{place}].parts[{index}].{kind}"
            raise InvalidArgument(
                f"{field}: the model reads text only",
                reason="UNSUPPORTED_MODALITY",
                field=field,
                allowed=("text",),
            )
        texts.append(part.text)
    return Message(
        role=_ROLES.get(message.role, ""),
        texts=texts,
        name=message.name,
        tool_call_id=message.tool_call_id,
        tool_calls=[
            ToolCall(call.id, call.name, call.arguments_json) for call in message.tool_calls
        ],
        reasoning=message.reasoning,
    )


def _template_kwargs(text: str) -> dict[str, Any]:
    if not text:
        return {}
    field = "chat.template_kwargs_json"
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"{field} is not valid JSON: {error}", field=field) from None
    if not isinstance(values, dict):
        raise InvalidArgument(f"{field} must be a JSON object", field=field)
    return values
