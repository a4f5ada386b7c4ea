"""Chat input as the domain sees it, and as templates see it."""

from __future__ import annotations

import hashlib
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
    tools: Sequence[Mapping[str, Any]] = ()
    """Offered to the model, in the form that templates expect."""


@dataclass(frozen=True)
class MessageForm:
    """What a template takes, as far as templates differ."""

    part_lists: bool = False
    """Content as a list of parts instead of one text."""
    developer_role: bool = False
    """It knows this role; else it becomes system."""
    argument_text: bool = False
    """Arguments of earlier calls as JSON text instead of an object."""
    short_call_ids: bool = False
    """Ids of calls must have nine letters and digits."""

    def call_id(self, identifier: str) -> str:
        """A call's id as the template takes it; equal for equal ids."""
        if not self.short_call_ids:
            return identifier
        return hashlib.sha256(identifier.encode()).hexdigest()[:9]


def template_messages(
    conversation: Conversation,
    *,
    guard: Callable[[str], str],
    form: MessageForm,
) -> list[dict[str, Any]]:
    """The messages in the form that the templates of the field expect.

    Args:
        conversation: validated.
        guard: applied to every text that a person or model wrote.
        form: what this template takes.
    """
    names = {call.id: call.name for message in conversation.messages for call in message.tool_calls}
    return [
        _template_message(message, guard, form, names.get(message.tool_call_id, ""))
        for message in conversation.messages
    ]


def _template_message(
    message: Message, guard: Callable[[str], str], form: MessageForm, called: str
) -> dict[str, Any]:
    role = message.role
    if role == "developer" and not form.developer_role:
        role = "system"
    content: str | list[dict[str, str]] = guard("".join(message.texts))
    if form.part_lists:
        content = [{"type": "text", "text": guard(text)} for text in message.texts]
    shown: dict[str, Any] = {"role": role, "content": content}
    if message.name or called:
        shown["name"] = guard(message.name or called)
    if message.tool_call_id:
        shown["tool_call_id"] = guard(form.call_id(message.tool_call_id))
    if message.reasoning:
        shown["reasoning_content"] = guard(message.reasoning)
    if message.tool_calls:
        shown["tool_calls"] = [_template_call(call, guard, form) for call in message.tool_calls]
    return shown


def _template_call(
    call: ToolCall, guard: Callable[[str], str], form: MessageForm
) -> dict[str, Any]:
    arguments = guard_values(call_arguments(call.arguments_json), guard)
    if form.argument_text:
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {
        "id": guard(form.call_id(call.id)),
        "type": "function",
        "function": {"name": guard(call.name), "arguments": arguments},
    }


def call_arguments(text: str) -> dict[str, Any]:
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
