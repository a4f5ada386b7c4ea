"""Calls as JSON objects: ``{"name": ..., "arguments": {...}}``, in tags, in a list, or bare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

from antiphon_llm.front.parsing import tags
from antiphon_llm.front.parsing.base import NAME, BareFormat, MarkedFormat, Tools, ToolSpec
from antiphon_llm.front.parsing.reader import Markers, Reader, Steps
from antiphon_llm.front.parsing.tags import Tag

_ARGUMENT_KEYS = ("arguments", "parameters")
_GAPS = ("", " ", "\n", "\n  ", "\n    ")
"""White space inside the brackets of JSON as models write it."""


def read_object(reader: Reader, tools: Tools | None = None, *, opened: bool = False) -> Steps:
    """Reads one call object; False where it is none.

    Args:
        reader: at the brace.
        tools: the name must be one of these, and stand first: for objects that no marker
            announces; None takes any.
        opened: the brace was consumed.
    """
    if not opened and not (yield from reader.literal("{")):
        return False
    name, held = "", ""
    while True:
        yield from reader.space()
        key = yield from reader.json_string()
        yield from reader.space()
        if not key or not (yield from reader.literal(":")):
            break
        yield from reader.space()
        if key == "name" and not name:
            name = yield from reader.json_string()
            if not NAME.fullmatch(name) or not name or (tools is not None and name not in tools):
                return False
            if held:
                reader.open_call(name)
                reader.arguments(_plain(held))
        elif key in _ARGUMENT_KEYS and name and not reader.call_is_open:
            reader.open_call(name)
            if not (yield from _stream_arguments(reader)):
                return True
        elif tools is not None and not reader.call_is_open:
            return False
        elif key in _ARGUMENT_KEYS and not held:
            held = yield from reader.json_text()
        elif not (yield from reader.json_text()):
            break
        yield from reader.space()
        if not (yield from reader.literal(",")):
            break
    return (yield from _end_object(reader, name, announced=tools is None))


def _end_object(reader: Reader, name: str, *, announced: bool) -> Steps:
    closed = yield from reader.literal("}")
    if not reader.call_is_open:
        if not (name and closed and announced):
            return False
        reader.open_call(name)
    if closed or (yield from reader.peek()):
        reader.close_call()
    return True


def _stream_arguments(reader: Reader) -> Steps:
    """Emits the arguments as they come; JSON inside a string is unpacked first."""
    if (yield from reader.peek()) in ('"', "n"):
        text = yield from reader.json_text()
        reader.arguments(_plain(text))
        return bool(text)
    return (yield from reader.json_value(reader.arguments))


def _plain(text: str) -> str:
    if not text.startswith('"'):
        return "" if text == "null" else text
    try:
        return str(json.loads(text)).encode("utf-8", "replace").decode()
    except ValueError:
        return text


def read_list(reader: Reader, tools: Tools | None = None) -> Steps:
    """Reads call objects behind an opening bracket, up to the closing one."""
    while True:
        yield from reader.space()
        if not (yield from read_object(reader, tools)):
            return False
        yield from reader.space()
        if not (yield from reader.literal(",")):
            return (yield from reader.literal("]"))
        reader.begin_call(",")


class JsonInTags(MarkedFormat):
    """``<tool_call>{"name": ..., "arguments": ...}</tool_call>``: Hermes, Qwen and many others.

    Some put a list of such objects between the tags, which is read, too.
    """

    name = "json_tags"
    openers = Markers("<tool_call>")
    markers = ("<tool_call>", "</tool_call>")
    trigger = "<tool_call>"
    separator = "\n"

    def read_calls(self, reader: Reader, tools: Tools, opener: str) -> Steps:
        yield from reader.space()
        if (yield from reader.literal("[")):
            yield from read_list(reader)
            yield from reader.space()
            return (yield from reader.literal("</tool_call>"))
        while (yield from read_object(reader)):
            yield from reader.space()
            if (yield from reader.peek()) != "{":
                return (yield from reader.literal("</tool_call>"))
            reader.begin_call()
        return False

    def tag(self, tool: ToolSpec, whitespace: int) -> Tag:
        return tags.tag(
            f'<tool_call>\n{{"name": "{tool.name}", "arguments": ',
            tags.arguments(tool.grammar, whitespace),
            "}\n</tool_call>",
        )


class BracketArray(BareFormat):
    """``[{"name": ..., "arguments": ...}, ...]`` where the content begins."""

    name = "bracket_array"
    bare = ("[",)
    separator = ", "
    wrapper = ("[", "]")

    def read_calls(self, reader: Reader, tools: Tools, opener: str) -> Steps:
        return (yield from read_list(reader, tools))

    def beginnings(self, tools: Sequence[ToolSpec]) -> Sequence[str]:
        return [f'[{gap}{{{inner}"name"' for gap in _GAPS for inner in _GAPS]

    def tag(self, tool: ToolSpec, whitespace: int) -> Tag:
        return _object_tag(tool, whitespace)


class TaggedArray(MarkedFormat):
    """The same list between ``<|tool_call|>`` tags: Phi 4, Granite."""

    name = "tagged_array"
    openers = Markers("<|tool_call|>")
    markers = ("<|tool_call|>", "<|/tool_call|>")
    trigger = "<|tool_call|>"
    separator = ", "
    wrapper = ("<|tool_call|>[", "]<|/tool_call|>")

    def read_calls(self, reader: Reader, tools: Tools, opener: str) -> Steps:
        yield from reader.space()
        if not (yield from reader.literal("[")):
            return False
        yield from read_list(reader)
        yield from reader.space()
        return (yield from reader.literal("<|/tool_call|>"))

    def tag(self, tool: ToolSpec, whitespace: int) -> Tag:
        return _object_tag(tool, whitespace)


class Mistral(MarkedFormat):
    """``[TOOL_CALLS][{"name": ..., "arguments": ...}]``, or ``[TOOL_CALLS]name[ARGS]{...}``.

    Which of both a model writes follows from its template; both are read.
    """

    openers = Markers("[TOOL_CALLS]")
    markers: ClassVar = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    trigger = "[TOOL_CALLS]"

    def read_calls(self, reader: Reader, tools: Tools, opener: str) -> Steps:
        yield from reader.space()
        if (yield from reader.literal("[")):
            return (yield from read_list(reader))
        name = yield from reader.run(NAME)
        if not name:
            return False
        if (yield from reader.literal("[CALL_ID]")):
            yield from reader.run(NAME)
        if not (yield from reader.literal("[ARGS]")) and (yield from reader.peek()) != "{":
            return False
        reader.open_call(name)
        if (yield from reader.json_value(reader.arguments)):
            reader.close_call()
        return True


class MistralList(Mistral):
    """All calls in one list."""

    name = "mistral_list"
    separator = ", "
    wrapper = ("[TOOL_CALLS][", "]")

    def tag(self, tool: ToolSpec, whitespace: int) -> Tag:
        return _object_tag(tool, whitespace)


class MistralNamed(Mistral):
    """A marker, a name and arguments for each call."""

    name = "mistral_named"

    def tag(self, tool: ToolSpec, whitespace: int) -> Tag:
        begin = f"[TOOL_CALLS]{tool.name}[ARGS]"
        return tags.tag(begin, tags.arguments(tool.grammar, whitespace), "")


class LlamaJson(BareFormat):
    """``<|python_tag|>{"name": ..., "parameters": {...}}``, with or without the marker."""

    name = "llama_json"
    openers = Markers("<|python_tag|>")
    bare = ("{",)
    markers = ("<|python_tag|>",)
    separator = "; "

    def read_calls(self, reader: Reader, tools: Tools, opener: str) -> Steps:
        yield from reader.space()
        bare = opener == "{"
        while (yield from read_object(reader, tools if bare else None, opened=bare)):
            bare = False
            yield from reader.space()
            if not (yield from reader.literal(";")):
                return True
            yield from reader.space()
            if (yield from reader.peek()) != "{":
                return True
            reader.begin_call()
        return False

    def beginnings(self, tools: Sequence[ToolSpec]) -> Sequence[str]:
        return ("<|python_tag|>", *(f'{{{gap}"name"' for gap in _GAPS))

    def tag(self, tool: ToolSpec, whitespace: int) -> Tag:
        return _object_tag(tool, whitespace, "parameters")


def _object_tag(tool: ToolSpec, whitespace: int, key: str = "arguments") -> Tag:
    arguments = tags.arguments(tool.grammar, whitespace)
    return tags.tag(f'{{"name": "{tool.name}", "{key}": ', arguments, "}")
