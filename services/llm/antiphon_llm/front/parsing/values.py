"""Arguments that are not written as JSON, and the JSON that is made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from antiphon_llm.front.parsing.reader import Emit, Markers, Reader, Steps

_WORDS = {"true": True, "false": False, "null": None, "none": None}
_CONTAINERS = {"array", "object"}
_REFERENCES = 16


def dumps(value: Any) -> str:
    """JSON text; escapes only what must be."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() or _encodable(text) else json.dumps(value)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def escaped(text: str) -> str:
    """The inside of a JSON string."""
    return dumps(text)[1:-1]


class ObjectWriter:
    """Writes the members of an arguments object as they become known."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._next = "{"

    def key(self, name: str) -> None:
        """A member begins; its value is emitted next."""
        self._emit(f"{self._next}{dumps(name)}: ")
        self._next = ", "

    def end(self) -> None:
        """No member follows."""
        self._emit("{}" if self._next == "{" else "}")


def types_of(schema: Mapping[str, Any], root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a schema admits at its top; empty where it does not say."""
    return _types(schema, root, _REFERENCES)


def resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that references inside the document lead to; an empty one where none does."""
    for _ in range(_REFERENCES):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        schema = _resolve(reference, root)
    return {}


def object_branches(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The object schemas of which arguments must match one."""
    top = resolved(schema, schema)
    branches = top.get("anyOf") or top.get("oneOf") or [top]
    return [resolved(branch, schema) for branch in branches]


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    if depth == 0:
        return frozenset()
    schema = resolved(schema, root)
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset((named,))
    if isinstance(named, list):
        return frozenset(map(str, named))
    for key in ("anyOf", "oneOf"):
        branches = schema.get(key)
        if isinstance(branches, list):
            found = [_types(branch, root, depth - 1) for branch in branches]
            return frozenset().union(*found) if all(found) else frozenset()
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return frozenset(map(_type_of, values)) if isinstance(values, list) else frozenset()


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    if not reference.startswith("#"):
        return None
    value: Any = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")):
        if isinstance(value, kind):
            return name
    return "array" if isinstance(value, list) else "object"


@dataclass(frozen=True, slots=True)
class Argument:
    """What a schema says of one argument."""

    types: frozenset[str] = frozenset()
    """JSON types; empty where it does not say."""
    bounds: Sequence[Mapping[str, Any]] = ()
    """Schemas of which a string must match one; none where any string will do. White space
    around a bounded string is no part of it, unless it fits with it alone."""

    def admits(self, text: str) -> bool:
        """Whether the text keeps to the bounds."""
        return any(_keeps(text, bound) for bound in self.bounds)


TEXT = Argument(frozenset(("string",)))
_BOUNDS = ("enum", "const", "pattern", "minLength", "maxLength")


def argument(schema: Mapping[str, Any], name: str) -> Argument:
    """What the schema of an arguments object says of one."""
    properties = schema.get("properties")
    found = resolved(properties.get(name) if isinstance(properties, Mapping) else None, schema)
    branches = [
        branch
        for branch in map(partial(resolved, root=schema), found.get("anyOf") or [found])
        if "string" in types_of(branch, schema)
    ]
    bounded = all(any(key in branch for key in _BOUNDS) for branch in branches)
    return Argument(types_of(found, schema), branches if bounded else ())


def _keeps(text: str, bound: Mapping[str, Any]) -> bool:
    values = bound.get("enum", [bound["const"]] if "const" in bound else None)
    if values is not None and text not in values:
        return False
    if not bound.get("minLength", 0) <= len(text) <= bound.get("maxLength", len(text)):
        return False
    try:
        return re.search(bound.get("pattern", ""), text) is not None
    except re.error:
        return text == text.strip()  # Another dialect of patterns.


def typed(text: str, types: frozenset[str]) -> str:
    """The JSON of an argument that was written as plain text.

    What a schema calls a string is one; else the text is read as JSON (or as Python's words for
    JSON's) if it can be and the schema admits it, and is a string if not.
    """
    if types == {"string"}:
        return dumps(text)
    stripped = text.strip()
    try:
        value = json.loads(stripped)
    except ValueError:
        word = stripped.lower()
        if word not in _WORDS:
            return dumps(text)
        value, stripped = _WORDS[word], dumps(_WORDS[word])
    kind = _type_of(value)
    admitted = not types or kind in types or (kind == "integer" and "number" in types)
    return stripped if admitted or "string" not in types else dumps(text)


def read_typed(reader: Reader, known: Argument, end: Markers, *, lines: bool) -> Steps:
    """Reads an argument up to its end and emits it as JSON; False if it is cut.

    Strings are emitted as they come, other values whole.

    Args:
        reader: behind the argument's beginning.
        known: of the schema.
        end: the marker that ends it.
        lines: the value stands on lines of its own, so that one line break at either side is
            not part of it.
    """
    if lines:
        yield from reader.literal("\n")
    if known.types != {"string"} or known.bounds:
        parts: list[str] = []
        if known.types & _CONTAINERS and "string" not in known.types:
            # The end may stand inside a string of it.
            yield from reader.space()
            if (yield from reader.peek()) in ("[", "{"):
                yield from reader.json_value(parts.append)
        if not (yield from reader.until(end, parts.append)):
            return False
        text = "".join(parts)
        reader.arguments(typed(_trimmed(text, known, lines), known.types))
        return True
    reader.arguments('"')
    if not (yield from reader.until(end, _all_but_last_break(reader.arguments, lines))):
        return False
    reader.arguments('"')
    return True


def _trimmed(text: str, known: Argument, lines: bool) -> str:
    """The value without what the format puts around it."""
    inside = text[:-1] if lines and text.endswith("\n") else text
    if not known.bounds or known.admits(inside) or not known.admits(inside.strip()):
        return inside
    return inside.strip()


def _all_but_last_break(emit: Emit, lines: bool) -> Callable[[str], None]:
    held = ""

    def pass_on(text: str) -> None:
        nonlocal held
        text = held + text
        held = "\n" if lines and text.endswith("\n") else ""
        emit(escaped(text[: len(text) - len(held)]))

    return pass_on
