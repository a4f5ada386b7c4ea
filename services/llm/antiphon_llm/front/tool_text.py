"""Tools in plain words, for models whose chat template has no place for them."""

from __future__ import annotations

import json
from dataclasses import replace

from antiphon_llm.front.conversation import Conversation, Message, call_arguments
from antiphon_llm.front.parsing.base import CallFormat, written

_DESCRIPTION = """\
These functions are available, one JSON object on each line:
<tools>
{tools}
</tools>
A function is called by writing its name and its arguments in this form:
{example}
The result then stands between <tool_response> and </tool_response>."""


def described(conversation: Conversation, format: CallFormat) -> Conversation:
    """The conversation with its tools, and how to call them, in the system message."""
    lines = "\n".join(
        json.dumps(tool["function"], ensure_ascii=False) for tool in conversation.tools
    )
    example = written(format, "function_name", {"argument_name": "value"})
    text = _DESCRIPTION.format(tools=lines, example=example)
    first, *others = conversation.messages
    if first.role in ("system", "developer"):
        joined = "".join(first.texts)
        messages = [replace(first, texts=(f"{joined}\n\n{text}" if joined else text,)), *others]
    else:
        messages = [Message("system", (text,)), *conversation.messages]
    return replace(conversation, messages=messages, tools=())


def in_words(conversation: Conversation, format: CallFormat) -> Conversation:
    """The conversation with its calls and results as text of the usual messages."""
    messages: list[Message] = []
    results: list[str] = []
    for message in conversation.messages:
        if message.role == "tool":
            results.append(f"<tool_response>\n{''.join(message.texts)}\n</tool_response>")
            continue
        _end_results(messages, results)
        messages.append(_with_calls(message, format) if message.tool_calls else message)
    _end_results(messages, results)
    return replace(conversation, messages=messages)


def _end_results(messages: list[Message], results: list[str]) -> None:
    """Results that stand together are one turn: some templates want turns to alternate."""
    if results:
        messages.append(Message("user", ("\n".join(results),)))
        results.clear()


def _with_calls(message: Message, format: CallFormat) -> Message:
    calls = "\n".join(
        written(format, call.name, call_arguments(call.arguments_json))
        for call in message.tool_calls
    )
    before = "".join(message.texts)
    return replace(message, texts=(f"{before}\n{calls}" if before else calls,), tool_calls=())
