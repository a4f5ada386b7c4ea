"""Calls of the function-calling Gemma models, whose strings stand between marker tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from antiphon_llm.front.parsing import tags
from antiphon_llm.front.parsing.base import NAME, MarkedFormat, Tools, ToolSpec
from antiphon_llm.front.parsing.reader import Markers, Reader, Steps
from antiphon_llm.front.parsing.tags import Tag
from antiphon_llm.front.parsing.values import dumps, escaped, object_branches, resolved, typed

_KEY = re.compile(r"[^:{}\[\],]*")
_SCALAR = re.compile(r"[^,{}\[\]]*")
_DEPTH_LIMIT = 32


class FunctionGemma(MarkedFormat):
    """``<start_function_call>call:NAME{key:<escape>text<escape>,n:5}<end_function_call>``."""

    name = "function_gemma"
    opener = "<start_function_call>"
    closer = "<end_function_call>"
    quote = "<escape>"
    openers = Markers("<start_function_call>")
    markers = ("<start_function_call>", "<end_function_call>", "<escape>")
    trigger = "<start_function_call>"

    def __init__(self) -> None:
        super().__init__()
        self._quote = Markers(self.quote)

    def read_calls(self, reader: Reader, tools: Tools, opener: str) -> Steps:
        if not (yield from reader.literal("call:")):
            return False
        name = yield from reader.run(NAME)
        if not name or (yield from reader.peek()) != "{":
            return False
        reader.open_call(name)
        if (yield from self._value(reader, 0)):
            reader.close_call()
        return (yield from reader.literal(self.closer))

    def _value(self, reader: Reader, depth: int) -> Steps:
        """Emits a value as JSON; False where the output ends inside."""
        if (yield from reader.literal(self.quote)):
            reader.arguments('"')
            end = yield from reader.until(self._quote, lambda text: reader.arguments(escaped(text)))
            reader.arguments('"' if end else "")
            return bool(end)
        first = yield from reader.peek()
        if first and first in "[{" and depth < _DEPTH_LIMIT:
            return (yield from self._container(reader, first, depth))
        word = yield from reader.run(_SCALAR)
        if (yield from reader.peek()) == "":
            return False
        reader.arguments(typed(word.strip(), frozenset()) if word.strip() else "null")
        return True

    def _container(self, reader: Reader, first: str, depth: int) -> Steps:
        yield from reader.literal(first)
        last = "}" if first == "{" else "]"
        reader.arguments(first)
        separator = ""
        while True:
            if (yield from reader.literal(last)):
                reader.arguments(last)
                return True
            reader.arguments(separator)
            if first == "{":
                key = yield from reader.run(_KEY)
                if not key or not (yield from reader.literal(":")):
                    return False
                reader.arguments(f"{dumps(key.strip())}: ")
            if not (yield from self._value(reader, depth + 1)):
                return False
            separator = ", "
            if not (yield from reader.literal(",")) and (yield from reader.peek()) != last:
                return False

    def tag(self, tool: ToolSpec, whitespace: int) -> Tag:
        root = tool.grammar
        members = tags.either(*(self._members(branch, root) for branch in object_branches(root)))
        return tags.tag(f"{self.opener}call:{tool.name}{{", members, f"}}{self.closer}")

    def _members(self, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Tag:
        return tags.members(
            list(schema.get("properties", ())),
            schema.get("required", ()),
            lambda name: self._schema_tag(schema["properties"][name], root),
            between=",",
            assign=":",
        )

    def _schema_tag(self, schema: Any, root: Mapping[str, Any]) -> Tag:
        """A value of a schema in this notation."""
        schema = resolved(schema, root)
        branches = schema.get("anyOf") or schema.get("oneOf")
        if branches:
            return tags.either(*(self._schema_tag(branch, root) for branch in branches))
        values = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
        if values:
            return tags.either(*(tags.text(self._written(value)) for value in values))
        kinds = schema.get("type", ["string", "number", "boolean"])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        return tags.either(*(self._type_tag(kind, schema, root) for kind in kinds))

    def _type_tag(self, kind: str, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Tag:
        if kind == "string":
            return tags.tag(self.quote, self._string_tag(schema), self.quote)
        if kind == "object":
            return tags.tag("{", self._members(schema, root), "}")
        if kind == "array":
            item = self._schema_tag(schema.get("items", {}), root)
            return tags.tag("[", _list_tag(item, schema), "]")
        return tags.arguments({**schema, "type": kind}, 1)

    def _string_tag(self, schema: Mapping[str, Any]) -> Tag:
        pattern = schema.get("pattern")
        if isinstance(pattern, str):
            return {"type": "regex", "pattern": pattern.removeprefix("^").removesuffix("$")}
        low, high = schema.get("minLength", 0), schema.get("maxLength", "")
        if low or high != "":
            return {"type": "regex", "pattern": f"[^<]{{{low},{high}}}"}
        return tags.any_text(self.quote)

    def _written(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, list):
            return f"[{','.join(map(self._written, value))}]"
        if isinstance(value, dict):
            members = (f"{key}:{self._written(item)}" for key, item in value.items())
            return f"{{{','.join(members)}}}"
        return dumps(value)


class Gemma4(FunctionGemma):
    """``<|tool_call>call:NAME{key:<|"|>text<|"|>,n:5}<tool_call|>``."""

    name = "gemma4"
    opener = "<|tool_call>"
    closer = "<tool_call|>"
    quote = '<|"|>'
    openers = Markers("<|tool_call>")
    markers = ("<|tool_call>", "<tool_call|>", '<|"|>')
    trigger = "<|tool_call>"


def _list_tag(item: Tag, schema: Mapping[str, Any]) -> Tag:
    """Items between commas, as many as the schema allows."""
    low, high = int(schema.get("minItems", 0)), int(schema.get("maxItems", -1))
    if high == 0:
        return tags.text("")
    following = tags.sequence(tags.text(","), item)
    filled = tags.sequence(
        item, tags.repeat(following, max(0, low - 1), high - 1 if high > 0 else -1)
    )
    return filled if low else tags.optional(filled)
