"""Calls as Python writes them: ``[get_weather(city="Oslo", days=3), now()]``."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon_llm.front.parsing import tags
from antiphon_llm.front.parsing.base import NAME, BareFormat, MarkedFormat, Tools, ToolSpec
from antiphon_llm.front.parsing.reader import Markers, Reader, Steps, TextSteps
from antiphon_llm.front.parsing.tags import Tag
from antiphon_llm.front.parsing.values import ObjectWriter, dumps, object_branches, typed

_KEY = re.compile(r"[^\s=,()\[\]{}\"']*")
_WORD = re.compile(r"[^\s,()\[\]{}:\"']*")
_STRING_PARTS = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'"}
_ESCAPE = re.compile(r"\\(.)")
_DEPTH_LIMIT = 32


def read_call(reader: Reader, tools: Tools | None) -> Steps:
    """Reads ``name(key=value, ...)``; False where it is none.

    Args:
        reader: at the name.
        tools: the name must be one of these; None takes any.
    """
    name = yield from reader.run(NAME)
    if not name or (tools is not None and name not in tools):
        return False
    if not (yield from reader.literal("(")):
        return False
    reader.open_call(name)
    writer = ObjectWriter(reader.arguments)
    while True:
        yield from reader.space()
        key = yield from reader.run(_KEY)
        yield from reader.space()
        if not key or not (yield from reader.literal("=")):
            break
        writer.key(key)
        yield from reader.space()
        if not (yield from _value(reader, 0)):
            return True
        yield from reader.space()
        if not (yield from reader.literal(",")):
            break
    closed = yield from reader.literal(")")
    if closed or (yield from reader.peek()):
        writer.end()
        reader.close_call()
    return True


def read_list(reader: Reader, tools: Tools | None) -> Steps:
    """Reads calls behind an opening bracket, up to the closing one."""
    while True:
        yield from reader.space()
        if not (yield from read_call(reader, tools)):
            return False
        yield from reader.space()
        if not (yield from reader.literal(",")):
            return (yield from reader.literal("]"))
        reader.begin_call(",")


def _value(reader: Reader, depth: int) -> Steps:
    """Emits a literal as JSON; False where the output ends inside."""
    first = yield from reader.peek()
    if first and first in "\"'":
        text = yield from _string(reader, first)
        reader.arguments(text)
        return bool(text)
    if first and first in "[{(" and depth < _DEPTH_LIMIT:
        return (yield from _container(reader, first, depth))
    word = yield from reader.run(_WORD)
    if not word and not (yield from reader.peek()):
        return False
    reader.arguments(typed(word, frozenset()) if word else "null")
    return True


def _container(reader: Reader, first: str, depth: int) -> Steps:
    yield from reader.literal(first)
    last = {"[": "]", "{": "}", "(": ")"}[first]
    reader.arguments("{" if first == "{" else "[")
    separator = ""
    while True:
        yield from reader.space()
        if (yield from reader.literal(last)):
            reader.arguments("}" if first == "{" else "]")
            return True
        reader.arguments(separator)
        if first == "{":
            quote = yield from reader.peek()
            key = (yield from _string(reader, quote)) if quote and quote in "\"'" else ""
            yield from reader.space()
            if not key or not (yield from reader.literal(":")):
                return False
            reader.arguments(f"{key}: ")
            yield from reader.space()
        if not (yield from _value(reader, depth + 1)):
            return False
        yield from reader.space()
        separator = ", "
        if not (yield from reader.literal(",")) and (yield from reader.peek()) != last:
            return False


def _string(reader: Reader, quote: str) -> TextSteps:
    """A Python string as JSON; empty where the output ends inside."""
    yield from reader.literal(quote)
    parts = [quote]
    while True:
        parts.append(reader.part(_STRING_PARTS[quote]))
        character = yield from reader.peek()
        if character == "":
            return ""
        if character not in (quote, "\\"):
            continue
        parts.append((yield from reader.characters(1 if character == quote else 2)))
        if character == quote:
            return _python_string("".join(parts))


def _python_string(text: str) -> str:
    try:
        return dumps(json.loads(text))  # Where both may be meant, "\\/" is JSON's.
    except ValueError:
        pass
    known = _ESCAPE.sub(_known_escape, text.replace("\n", "\\n").replace("\r", "\\r"))
    try:
        return dumps(ast.literal_eval(known))
    except (ValueError, SyntaxError):
        return dumps(text[1:-1])


def _known_escape(match: re.Match[str]) -> str:
    """An escape that Python does not know stands for its own two characters."""
    return match[0] if match[1] in "\\\"'abfnrtvxuUN01234567" else f"\\{match[0]}"


class LlamaList(BareFormat):
    """A list of calls, bare or after ``<|python_start|>``: Llama 3.2 and 4."""

    name = "llama_list"
    openers = Markers("<|python_start|>")
    bare = ("[",)
    markers = ("<|python_start|>", "<|python_end|>")
    separator = ", "
    wrapper = ("[", "]")

    def read_calls(self, reader: Reader, tools: Tools, opener: str) -> Steps:
        if opener == "[":
            return (yield from read_list(reader, tools))
        if not (yield from reader.literal("[")):
            return False
        yield from read_list(reader, None)
        return (yield from reader.literal("<|python_end|>"))

    def beginnings(self, tools: Sequence[ToolSpec]) -> Sequence[str]:
        return ("<|python_start|>", *(f"[{tool.name}(" for tool in tools))

    def tag(self, tool: ToolSpec, whitespace: int) -> Tag:
        return call_tag(tool, whitespace)


class GemmaToolCode(MarkedFormat):
    """Calls in a fenced block of the language ``tool_code``, as Gemma 3 is prompted to write."""

    name = "gemma_tool_code"
    openers = Markers("```tool_code\n")
    trigger = "```tool_code\n"
    separator = "\n"
    wrapper = ("```tool_code\n", "\n```")

    def read_calls(self, reader: Reader, tools: Tools, opener: str) -> Steps:
        yield from reader.space()
        if (yield from reader.literal("[")):
            yield from read_list(reader, None)
        else:
            while (yield from read_call(reader, None)):
                yield from reader.space()
                if (yield from reader.peek()) in ("`", ""):
                    break
                reader.begin_call()
        yield from reader.space()
        return (yield from reader.literal("```"))

    def tag(self, tool: ToolSpec, whitespace: int) -> Tag:
        return call_tag(tool, whitespace)


def call_tag(tool: ToolSpec, whitespace: int) -> Tag:
    """One call. Values are JSON, whose literals the parser takes beside Python's."""
    root = tool.grammar
    members = [
        tags.members(
            list(branch.get("properties", ())),
            branch.get("required", ()),
            lambda name, branch=branch: tags.arguments(
                _property_schema(branch, name, root), whitespace
            ),
            between=", ",
            assign="=",
        )
        for branch in object_branches(root)
    ]
    return tags.tag(f"{tool.name}(", tags.either(*members), ")")


def _property_schema(
    schema: Mapping[str, Any], name: str, root: Mapping[str, Any]
) -> dict[str, Any]:
    """A property's schema that still finds the definitions of the whole."""
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return {**schema["properties"][name], **shared}
