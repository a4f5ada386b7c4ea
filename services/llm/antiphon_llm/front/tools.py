"""Tools that a request offers: checks, and what templates, parsers and grammars need of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from antiphon_core.errors import InvalidArgument

from antiphon_llm.front.parsing.base import ToolSpec
from antiphon_llm.front.ranges import check_count
from antiphon_llm.front.schema_gate import GatedSchema, SchemaRefused, gate_schema

TOOL_LIMIT = 128
SCHEMA_BYTES = 256 * 1024
MODES = ("none", "auto", "required", "named")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NO_ARGUMENTS = '{"type": "object", "properties": {}, "additionalProperties": false}'
_OPEN_KEYWORDS = ("additionalProperties", "patternProperties", "unevaluatedProperties")
_JOINING = ('"allOf"', '"if"', '"dependentSchemas"', '"unevaluatedProperties"')


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters_json: str = ""
    """JSON schema of the arguments; empty takes none."""
    strict: bool = False
    """Refuse schema keywords that cannot be enforced."""


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """Tools offered, and how free the model is."""

    tools: Sequence[Tool] = ()
    mode: str = "none"
    """none, auto, required or named."""
    name: str = ""
    """The tool of the mode named."""
    allowed: Sequence[str] = ()
    """The only tools of use; empty allows all."""
    single_call: bool = False

    @property
    def offered(self) -> Sequence[Tool]:
        """The tools that the model hears of."""
        if self.mode == "none":
            return ()
        return [tool for tool in self.tools if not self.allowed or tool.name in self.allowed]

    @property
    def size(self) -> int:
        """Characters of all schemas."""
        return sum(len(tool.parameters_json) for tool in self.tools)


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of a checked request."""

    specs: Sequence[ToolSpec]
    """Those that may be called."""
    notes: Sequence[str]
    """What of their schemas is not enforced."""


def check_tools(options: ToolOptions) -> None:
    """Checks names, sizes and choice; ``offered_tools`` checks the schemas.

    Raises:
        InvalidArgument: naming the field and what it may hold.
    """
    check_count("chat.tools", len(options.tools), TOOL_LIMIT)
    names: set[str] = set()
    for place, tool in enumerate(options.tools):
        field = f"chat.tools[{place}]"
        if not _NAME.fullmatch(tool.name):
            raise InvalidArgument(
                f"{field}.name is {tool.name[:80]!r}, allowed are 1 to 64 of the characters "
                "A-Z a-z 0-9 _ -",
                field=f"{field}.name",
            )
        if tool.name in names:
            raise InvalidArgument(
                f"{field}.name {tool.name!r} is taken by a tool before it", field=f"{field}.name"
            )
        names.add(tool.name)
        _check_size(f"{field}.parameters_json", tool.parameters_json)
    _check_choice(options, names)


def check_ending(options: ToolOptions, *, ignore_eos: bool, min_tokens: int) -> None:
    """Refuses settings that bar the end of an output which must end behind a call.

    Raises:
        InvalidArgument: naming the setting.
    """
    one = options.mode == "named" or (options.single_call and bool(options.offered))
    if ignore_eos and (one or options.mode == "required"):
        raise InvalidArgument(
            "stop.ignore_eos does not go with calls that end the output",
            field="stop.ignore_eos",
        )
    if min_tokens and one:
        raise InvalidArgument(
            f"sampling.min_tokens is {min_tokens}, allowed is 0 where one call ends the output",
            field="sampling.min_tokens",
        )


def _check_size(field: str, text: str) -> None:
    size = len(text.encode())
    if size > SCHEMA_BYTES:
        raise InvalidArgument(
            f"{field} has {size} bytes, allowed are {SCHEMA_BYTES}",
            field=field,
            metadata={"limit": str(SCHEMA_BYTES), "observed": str(size)},
        )


def _check_choice(options: ToolOptions, names: set[str]) -> None:
    if options.mode not in ("none", "auto") and not options.tools:
        raise InvalidArgument(
            f"chat.tool_choice {options.mode} needs chat.tools", field="chat.tool_choice"
        )
    for place, name in enumerate(options.allowed):
        if name not in names:
            _unknown(f"chat.tool_choice.allowed[{place}]", name, names)
    if options.mode == "named":
        callable_names = {tool.name for tool in options.offered}
        if options.name not in callable_names:
            _unknown("chat.tool_choice.name", options.name, callable_names)
    elif options.name:
        raise InvalidArgument(
            f"chat.tool_choice.name belongs to the mode named, not to {options.mode}",
            field="chat.tool_choice.name",
        )


def _unknown(field: str, name: str, names: set[str]) -> None:
    raise InvalidArgument(
        f"{field} is {name!r}, which is none of the tools", field=field, allowed=sorted(names)
    )


def offered_tools(options: ToolOptions) -> OfferedTools:
    """What may be called, and how; takes up to a second for the largest schemas.

    Raises:
        InvalidArgument: a schema is refused.
    """
    specs, notes = [], []
    offered = {tool.name for tool in options.offered}
    if options.mode == "named":
        offered = {options.name}
    for place, tool in enumerate(options.tools):
        schema, gated = _checked(f"chat.tools[{place}].parameters_json", tool)
        if tool.name not in offered:
            continue
        specs.append(ToolSpec(tool.name, schema, gated.schema))
        notes += [f"tools[{place}] {tool.name}: {ignored}" for ignored in gated.ignored]
    return OfferedTools(specs, notes)


def template_tools(options: ToolOptions) -> list[dict[str, Any]]:
    """The offered tools in the form that chat templates expect; raises as ``offered_tools``."""
    offered = {tool.name for tool in options.offered}
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": _checked(f"chat.tools[{place}].parameters_json", tool)[0],
            },
        }
        for place, tool in enumerate(options.tools)
        if tool.name in offered
    ]


def _checked(field: str, tool: Tool) -> tuple[Mapping[str, Any], GatedSchema]:
    """A tool's schema as it was given, and as the grammar holds to it."""
    try:
        return _gated(tool.parameters_json or _NO_ARGUMENTS, tool.strict)
    except SchemaRefused as error:
        raise InvalidArgument(
            f"{field}: {error}",
            reason="UNSUPPORTED_OPTION" if error.unsupported else "INVALID_SCHEMA",
            field=field,
            metadata={"pointer": error.pointer, "keyword": error.keyword},
        ) from None
    except ValueError as error:
        raise InvalidArgument(
            f"{field} is no JSON schema of an object: {error}",
            reason="INVALID_SCHEMA",
            field=field,
        ) from None


@lru_cache(maxsize=256)
def _gated(text: str, strict: bool) -> tuple[Mapping[str, Any], GatedSchema]:
    schema = json.loads(text)
    if not isinstance(schema, dict):
        raise ValueError("it must be a JSON object")
    kind = schema.setdefault("type", "object") if not _composed(schema) else "object"
    if kind != "object":
        raise ValueError(f"its type is {kind!r}")
    closed = schema if any(word in text for word in _JOINING) else _closed(schema)
    return schema, gate_schema(closed, strict=strict)


def _composed(schema: Mapping[str, Any]) -> bool:
    return any(key in schema for key in ("$ref", "anyOf", "oneOf", "allOf"))


def _closed(schema: Any) -> Any:
    """The schema without names that it does not declare, where it leaves them open.

    What it then admits it admitted before; a model left to invent names would invent them.
    """
    if not isinstance(schema, dict):
        return schema
    named = isinstance(schema.get("properties"), dict)
    if named and ("anyOf" in schema or "oneOf" in schema):
        return schema  # A name that one part does not declare, the other may.
    result = dict(schema)
    for key in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(key), dict):
            result[key] = {name: _closed(value) for name, value in schema[key].items()}
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            result[key] = [_closed(value) for value in schema[key]]
    if isinstance(schema.get("items"), dict):
        result["items"] = _closed(schema["items"])
    if named and not any(key in schema for key in _OPEN_KEYWORDS) and "$ref" not in schema:
        result["additionalProperties"] = False
    return result
