"""Calls with one XML-like element for each argument; the tool's schema gives the types."""

from __future__ import annotations

import re

from antiphon_llm.front.parsing import tags
from antiphon_llm.front.parsing.base import NAME, MarkedFormat, Tools, ToolSpec
from antiphon_llm.front.parsing.reader import Markers, Reader, Steps
from antiphon_llm.front.parsing.tags import Tag
from antiphon_llm.front.parsing.values import ObjectWriter, property_types, read_typed

_KEY = re.compile(r"[^<>\n]*")


def _types(tools: Tools, name: str, key: str) -> frozenset[str]:
    """The types of an argument; a string where the tool or its argument is not known."""
    if name not in tools:
        return frozenset(("string",))
    return property_types(tools[name].schema, key)


class FunctionXml(MarkedFormat):
    """``<function=NAME><parameter=KEY>VALUE</parameter></function>``: Qwen3-Coder and later."""

    name = "function_xml"
    openers = Markers("<tool_call>", "<function=")
    markers = ("<tool_call>", "</tool_call>")
    trigger = "<tool_call>"
    separator = "\n"
    _ends = Markers("</parameter>", "<parameter=", "</function>", "</tool_call>")

    def read_calls(self, reader: Reader, tools: Tools, opener: str) -> Steps:
        if opener == "<tool_call>":
            yield from reader.space()
            if not (yield from reader.literal("<function=")):
                return False
        name = yield from reader.run(NAME)
        if not name or not (yield from reader.literal(">")):
            return False
        reader.open_call(name)
        end = yield from self._parameters(reader, tools, name)
        if end != "</tool_call>":
            yield from reader.space()
            yield from reader.literal("</tool_call>")
        return True

    def _parameters(self, reader: Reader, tools: Tools, name: str):
        """Reads to the end of the function and closes the call; returns the end that was found."""
        writer = ObjectWriter(reader.arguments)
        end = ""
        while True:
            if end != "<parameter=":
                yield from reader.space()
                end = yield from reader.any_of(self._ends)
            if end == "</parameter>":
                continue
            if end != "<parameter=":
                break
            key = (yield from reader.run(_KEY)).strip()
            if not key or not (yield from reader.literal(">")):
                break
            writer.key(key)
            types = _types(tools, name, key)
            end = yield from read_typed(reader, types, self._ends, lines=True)
            if not end:
                return ""
        if end or (yield from reader.peek()):
            writer.end()
            reader.close_call()
        return end

    def tag(self, tool: ToolSpec, whitespace: int) -> Tag:
        return tags.tag(
            f"<tool_call>\n<function={tool.name}>\n",
            tags.arguments(tool.schema, whitespace, "qwen_xml"),
            "\n</function>\n</tool_call>",
        )


class ArgumentXml(MarkedFormat):
    """``<tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value></tool_call>``: GLM 4.5."""

    name = "argument_xml"
    openers = Markers("<tool_call>")
    markers = (
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    )
    trigger = "<tool_call>"
    separator = "\n"
    _value_ends = Markers("</arg_value>", "</tool_call>")

    def read_calls(self, reader: Reader, tools: Tools, opener: str) -> Steps:
        yield from reader.space()
        name = yield from reader.run(NAME)
        yield from reader.space()
        if not name or (yield from reader.peek()) != "<":
            return False
        reader.open_call(name)
        writer = ObjectWriter(reader.arguments)
        end = ""
        while (yield from reader.literal("<arg_key>")):
            key = (yield from reader.run(_KEY)).strip()
            if not key or not (yield from reader.literal("</arg_key>")):
                break
            yield from reader.space()
            if not (yield from reader.literal("<arg_value>")):
                break
            writer.key(key)
            types = _types(tools, name, key)
            end = yield from read_typed(reader, types, self._value_ends, lines=False)
            if end != "</arg_value>":
                break
            yield from reader.space()
        if end != "</tool_call>" and (yield from reader.literal("</tool_call>")):
            end = "</tool_call>"
        if end == "</tool_call>" or (yield from reader.peek()):
            writer.end()
            reader.close_call()
        return True

    def tag(self, tool: ToolSpec, whitespace: int) -> Tag:
        return tags.tag(
            f"<tool_call>{tool.name}\n",
            tags.arguments(tool.schema, whitespace, "glm_xml"),
            "\n</tool_call>",
        )
