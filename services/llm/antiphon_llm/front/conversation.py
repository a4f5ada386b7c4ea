"""Chat input as the domain sees it, and as templates see it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from antiphon_core import metrics


@dataclass(frozen=True)
class ToolCall:
    """A call that the model made earlier in the conversation."""

    id: str
    name: str
    arguments_json: str


@dataclass(frozen=True)
class Message:
    """One message; ``role`` is system, user, assistant, tool or developer."""

    role: str
    texts: Sequence[str]
    name: str = ""
    tool_call_id: str = ""
    tool_calls: Sequence[ToolCall] = ()
    reasoning: str = ""


@dataclass(frozen=True)
class Conversation:
    """Everything that a chat template is given."""

    messages: Sequence[Message]
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    continue_final_message: bool = False
    reasoning_effort: str = ""


def template_messages(
    conversation: Conversation,
    *,
    guard: Callable[[str], str],
    part_lists: bool,
    developer_role: bool,
) -> list[dict[str, Any]]:
    """The messages in the form that the templates of the field expect.

    Args:
        conversation: validated.
        guard: applied to every text that a person or model wrote.
        part_lists: content as a list of parts instead of one text.
        developer_role: whether the template knows this role; else it becomes system.
    """
    return [
        _template_message(message, guard, part_lists, developer_role)
        for message in conversation.messages
    ]


def _template_message(
    message: Message, guard: Callable[[str], str], part_lists: bool, developer_role: bool
) -> dict[str, Any]:
    role = message.role
    if role == "developer" and not developer_role:
        role = "system"
    content: str | list[dict[str, str]] = guard("".join(message.texts))
    if part_lists:
        content = [{"type": "text", "text": guard(text)} for text in message.texts]
    shown: dict[str, Any] = {"role": role, "content": content}
    if message.name:
        shown["name"] = guard(message.name)
    if message.tool_call_id:
        shown["tool_call_id"] = guard(message.tool_call_id)
    if message.reasoning:
        shown["reasoning_content"] = guard(message.reasoning)
    if message.tool_calls:
        shown["tool_calls"] = [_template_call(call, guard) for call in message.tool_calls]
    return shown


def _template_call(call: ToolCall, guard: Callable[[str], str]) -> dict[str, Any]:
    return {
        "id": guard(call.id),
        "type": "function",
        "function": {
            "name": guard(call.name),
            "arguments": guard_values(_arguments(call.arguments_json), guard),
        },
    }


def _arguments(text: str) -> dict[str, Any]:
    """The arguments of an earlier call; what is no JSON object renders as no arguments."""
    try:
        arguments = json.loads(text or "{}")
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        return arguments
    metrics.fallback("tool_call_history", "arguments_not_an_object")
    return {}


def guard_values(value: Any, guard: Callable[[str], str]) -> Any:
    """The JSON value with ``guard`` applied to each text and key."""
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, list):
        return [guard_values(item, guard) for item in value]
    if isinstance(value, dict):
        return {guard(key): guard_values(item, guard) for key, item in value.items()}
    return value
