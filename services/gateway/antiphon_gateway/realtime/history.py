"""Conversation items as the prompt of the language model."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from antiphon_gateway.domain.generation import Content, ImageContent, Message, Role, ToolCall
from antiphon_gateway.realtime.conversation import Entry
from antiphon_gateway.realtime.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    InputImage,
    InputText,
    MessageItem,
    OutputAudio,
    OutputText,
)

SILENCE = "(The user says nothing.)"
"""Shown where the user was silent for so long that the model speaks again."""
PENDING_OUTPUT = '{"status":"pending"}'
"""Result shown for a call whose output has not come yet."""

_MERGED_ROLES = (Role.USER, Role.ASSISTANT)


def render(instructions: str, entries: Sequence[Entry]) -> list[Message]:
    """The prompt's messages, oldest first.

    Audio of the user appears as its transcript, spoken replies as the text that can have been
    heard. A call is always followed by its result, or by a placeholder. Successive messages of
    one speaker are joined, since many chat templates require that speakers alternate.
    """
    outputs = {
        entry.item.call_id: entry.item.output
        for entry in entries
        if isinstance(entry.item, FunctionCallOutputItem)
    }
    messages: list[Message] = []
    if instructions:
        messages.append(Message(Role.SYSTEM, (instructions,)))
    calls: list[FunctionCallItem] = []
    for entry in entries:
        item = entry.item
        if isinstance(item, FunctionCallItem):
            if item.status == "completed":
                calls.append(item)
            continue
        if isinstance(item, FunctionCallOutputItem):
            continue
        _add_calls(messages, calls, outputs)
        calls = []
        if item.status != "in_progress":
            _add_message(messages, Role(item.role), _parts(entry, item))
    _add_calls(messages, calls, outputs)
    return messages


def characters(messages: Iterable[Message]) -> int:
    """Length of the prompt's text, by which a too long prompt is shortened."""
    return sum(len(part) for message in messages for part in message.parts if isinstance(part, str))


def newest_within(entries: Sequence[Entry], share: float) -> list[Entry]:
    """The newest entries that hold at most a share of the text, never half of a call.

    Messages of the system are kept wherever they are. The newest entry is always kept.
    """
    if not entries:
        return []
    sizes = [characters(render("", [entry])) for entry in entries]
    fixed = [isinstance(e.item, MessageItem) and e.item.role == "system" for e in entries]
    allowed = sum(sizes) * share - sum(sizes[i] for i, is_fixed in enumerate(fixed) if is_fixed)
    start = len(entries) - 1
    total = 0 if fixed[start] else sizes[start]
    while start > 0:
        more = 0 if fixed[start - 1] else sizes[start - 1]
        if total + more > allowed:
            break
        start -= 1
        total += more
    while start < len(entries) - 1 and isinstance(entries[start].item, FunctionCallOutputItem):
        start += 1
    before = (entries[i] for i in range(start) if fixed[i])
    return [*before, *entries[start:]]


def _parts(entry: Entry, item: MessageItem) -> tuple[Content, ...]:
    parts: list[Content] = []
    for part in item.content:
        if isinstance(part, InputText | OutputText):
            parts.append(part.text)
        elif isinstance(part, InputAudio):
            silence = SILENCE if entry.is_silence else ""
            parts.append(entry.transcript or part.transcript or silence)
        elif isinstance(part, InputImage):
            parts.append(_image(part.image_url))
        elif isinstance(part, OutputAudio):
            text = part.transcript or ""
            parts.append(entry.playback.heard_text(text) if entry.playback else text)
    return tuple(part for part in parts if part)


def _image(url: str) -> ImageContent:
    head, _, payload = url.partition(",")
    mime_type = head.removeprefix("data:").partition(";")[0]
    try:
        return ImageContent(base64.b64decode(payload, validate=True), mime_type)
    except binascii.Error:
        return ImageContent(b"", mime_type)


def _add_message(messages: list[Message], role: Role, parts: tuple[Content, ...]) -> None:
    if not parts:
        return
    last = messages[-1] if messages else None
    if last and last.role is role and role in _MERGED_ROLES and not last.tool_calls:
        if isinstance(last.parts[-1], str) and isinstance(parts[0], str):
            joined = f"{last.parts[-1].rstrip()}\n{parts[0].lstrip()}"
            parts = (*last.parts[:-1], joined, *parts[1:])
        else:
            parts = (*last.parts, *parts)
        messages[-1] = replace(last, parts=parts)
    else:
        messages.append(Message(role, parts))


def _add_calls(
    messages: list[Message], calls: Sequence[FunctionCallItem], outputs: dict[str, str]
) -> None:
    if not calls:
        return
    tool_calls = tuple(
        ToolCall(id=call.call_id or "", name=call.name, arguments=call.arguments) for call in calls
    )
    last = messages[-1] if messages else None
    if last and last.role is Role.ASSISTANT and not last.tool_calls:
        messages[-1] = replace(last, tool_calls=tool_calls)
    else:
        messages.append(Message(Role.ASSISTANT, tool_calls=tool_calls))
    for call in tool_calls:
        output = outputs.get(call.id, PENDING_OUTPUT)
        messages.append(Message(Role.TOOL, (output,), tool_call_id=call.id))
