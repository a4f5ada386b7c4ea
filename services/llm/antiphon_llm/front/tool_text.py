"""Tools in plain words, for models whose chat template has no place for them.

The format is that of JSON in tags (``parsing.json_calls.JsonInTags``), for the description as
for the calls and results of the conversation so far.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from antiphon_llm.front.conversation import Conversation, Message, call_arguments

_DESCRIPTION = """\
These functions are available, one JSON object on each line:
<tools>
{tools}
</tools>
A function is called by writing its name and arguments as JSON between two tags:
<tool_call>
{{"name": "the name", "arguments": {{"an argument": "its value"}}}}
</tool_call>
The result then stands between <tool_response> and </tool_response>."""


def in_words(conversation: Conversation) -> Conversation:
    """The conversation with its tools, calls and results as text of the usual messages."""
    messages: list[Message] = []
    results: list[str] = []
    for message in conversation.messages:
        if message.role == "tool":
            results.append(f"<tool_response>\n{''.join(message.texts)}\n</tool_response>")
            continue
        _end_results(messages, results)
        messages.append(_with_calls(message) if message.tool_calls else message)
    _end_results(messages, results)
    if conversation.tools:
        messages = _described(messages, conversation.tools)
    return replace(conversation, messages=messages, tools=())


def _end_results(messages: list[Message], results: list[str]) -> None:
    """Results that stand together are one turn: some templates want turns to alternate."""
    if results:
        messages.append(Message("user", ("\n".join(results),)))
        results.clear()


def _with_calls(message: Message) -> Message:
    calls = [
        json.dumps(
            {"name": call.name, "arguments": call_arguments(call.arguments_json)},
            ensure_ascii=False,
        )
        for call in message.tool_calls
    ]
    text = "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
    before = "".join(message.texts)
    return replace(message, texts=(f"{before}\n{text}" if before else text,), tool_calls=())


def _described(messages: list[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = _DESCRIPTION.format(tools=lines)
    first = messages[0]
    if first.role in ("system", "developer"):
        joined = "".join(first.texts)
        return [replace(first, texts=(f"{joined}\n\n{text}" if joined else text,)), *messages[1:]]
    return [Message("system", (text,)), *messages]
