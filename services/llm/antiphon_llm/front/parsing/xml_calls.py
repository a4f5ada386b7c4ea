"""Calls with one XML-like element for each argument; the tool's schema gives the types."""

from __future__ import annotations

import re

from antiphon_llm.front.parsing import tags
from antiphon_llm.front.parsing.base import NAME, MarkedFormat, Tools, ToolSpec
from antiphon_llm.front.parsing.reader import Markers, Reader, Steps
from antiphon_llm.front.parsing.tags import Tag
from antiphon_llm.front.parsing.values import TEXT, Argument, ObjectWriter, argument, read_typed

_KEY = re.compile(r"[^<>\n]*")


def _known(tools: Tools, name: str, key: str) -> Argument:
    """What is known of an argument; where the tool is unknown, it is text."""
    return argument(tools[name].schema, key) if name in tools else TEXT


class FunctionXml(MarkedFormat):
    """``<function=NAME><parameter=KEY>VALUE</parameter></function>``: Qwen3-Coder and later."""

    name = "function_xml"
    openers = Markers("<tool_call>", "<function=")
    markers = ("<tool_call>", "</tool_call>")
    trigger = "<tool_call>"
    separator = "\n"
    _end = Markers("</parameter>")

    def read_calls(self, reader: Reader, tools: Tools, opener: str) -> Steps:
        if opener == "<tool_call>":
            yield from reader.space()
            if not (yield from reader.literal("<function=")):
                return False
        name = yield from reader.run(NAME)
        if not name or not (yield from reader.literal(">")):
            return False
        reader.open_call(name)
        writer = ObjectWriter(reader.arguments)
        yield from reader.space()
        while (yield from reader.literal("<parameter=")):
            key = (yield from reader.run(_KEY)).strip()
            if not key or not (yield from reader.literal(">")):
                break
            writer.key(key)
            if not (yield from read_typed(reader, _known(tools, name, key), self._end, lines=True)):
                return True
            yield from reader.space()
        if (yield from reader.literal("</function>")) or (yield from reader.peek()):
            writer.end()
            reader.close_call()
        yield from reader.space()
        return (yield from reader.literal("</tool_call>"))

    def tag(self, tool: ToolSpec, whitespace: int) -> Tag:
        return tags.tag(
            f"<tool_call>\n<function={tool.name}>\n",
            tags.arguments(tool.grammar, whitespace, "qwen_xml"),
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
    _end = Markers("</arg_value>")

    def read_calls(self, reader: Reader, tools: Tools, opener: str) -> Steps:
        yield from reader.space()
        name = yield from reader.run(NAME)
        yield from reader.space()
        if not name or (yield from reader.peek()) != "<":
            return False
        reader.open_call(name)
        writer = ObjectWriter(reader.arguments)
        while (yield from reader.literal("<arg_key>")):
            key = (yield from reader.run(_KEY)).strip()
            if not key or not (yield from reader.literal("</arg_key>")):
                break
            yield from reader.space()
            if not (yield from reader.literal("<arg_value>")):
                break
            writer.key(key)
            known = _known(tools, name, key)
            if not (yield from read_typed(reader, known, self._end, lines=False)):
                return True
            yield from reader.space()
        if (yield from reader.literal("</tool_call>")) or (yield from reader.peek()):
            writer.end()
            reader.close_call()
        return True

    def tag(self, tool: ToolSpec, whitespace: int) -> Tag:
        return tags.tag(
            f"<tool_call>{tool.name}\n",
            tags.arguments(tool.grammar, whitespace, "glm_xml"),
            "\n</tool_call>",
        )
