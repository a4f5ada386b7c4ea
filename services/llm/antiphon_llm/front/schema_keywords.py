"""The keywords of one schema: their shapes, what is enforced, and their normal form."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from antiphon_llm.front.schema_logic import (
    GROUPS,
    Inseparable,
    Schema,
    SelfReference,
    conjoin,
    holds,
)
from antiphon_llm.front.schema_patterns import PatternUnsupported, search_pattern

BOUND_LIMIT = 2**53
"""Largest magnitude of a numeric bound."""

FORMATS = frozenset(
    (
        "date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri",
        "uri-reference", "uuid", "uri-template", "json-pointer", "relative-json-pointer",
    )
)  # fmt: skip
"""Values of ``format`` that are enforced; without it the keyword is an annotation."""
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

_ANNOTATIONS = frozenset(
    (
        "$schema", "$comment", "$vocabulary", "$defs", "definitions", "$anchor", "$dynamicAnchor",
        "title", "description", "default", "examples", "example", "deprecated", "readOnly",
        "writeOnly", "contentEncoding", "contentMediaType", "contentSchema", "discriminator",
        "externalDocs", "xml",
    )
)  # fmt: skip
JOINED = ("$ref", "allOf", "anyOf", "oneOf")
_ENFORCED = frozenset(("type", "enum", "const", *JOINED, *(k for g in GROUPS.values() for k in g)))
_VOID: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "not": lambda schema: schema["not"] is False,
    "if": lambda schema: "then" not in schema and "else" not in schema,
    "then": lambda schema: "if" not in schema,
    "else": lambda schema: "if" not in schema,
    "contains": lambda schema: schema.get("minContains") == 0 and "maxContains" not in schema,
    "minContains": lambda schema: "contains" not in schema or schema["minContains"] in (0, 1),
    "maxContains": lambda schema: "contains" not in schema,
    "uniqueItems": lambda schema: schema["uniqueItems"] is False,
    "dependentRequired": lambda schema: not any(schema["dependentRequired"].values()),
    "dependentSchemas": lambda schema: not schema["dependentSchemas"],
    "dependencies": lambda schema: not schema["dependencies"],
    "unevaluatedProperties": lambda schema: schema["unevaluatedProperties"] is True,
    "unevaluatedItems": lambda schema: schema["unevaluatedItems"] is True,
    "additionalItems": lambda schema: not isinstance(schema.get("items"), list),
    "$id": lambda schema: False,
}
"""Keywords that are not enforced, and when they ask for nothing."""
_EVALUATES = (*JOINED, "if", "contains", "dependentSchemas")
_PLAIN_ALONE = ("unevaluatedProperties", "unevaluatedItems")
"""What is like ``additionalProperties`` and ``items`` where no neighbour evaluates anything."""


def _non_negative(value: object) -> bool:
    return _number(value) and value >= 0 and value == int(value)  # type: ignore[operator,arg-type]


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_schema(value: object) -> bool:
    return isinstance(value, dict | bool)


def _schemas(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _schema_list(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


_COUNT = (_non_negative, "an integer, 0 or more")
_BOUND = (_number, "a number")
_SCHEMA = (_is_schema, "a schema")
_SCHEMAS = (_schemas, "an object of schemas")
_SCHEMA_LIST = (_schema_list, "a list of at least one schema")
SHAPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _COUNT),
    **dict.fromkeys(("minProperties", "maxProperties"), _COUNT),
    **dict.fromkeys(GROUPS["number"][:4], _BOUND),
    **dict.fromkeys(("additionalProperties", "propertyNames", "unevaluatedProperties"), _SCHEMA),
    **dict.fromkeys(("unevaluatedItems", "additionalItems", "not", "contains", "if"), _SCHEMA),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions"), _SCHEMAS),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _SCHEMA_LIST),
    "items": (lambda value: _is_schema(value) or _schema_list(value), "a schema"),
    "multipleOf": (lambda value: _number(value) and value > 0, "a number above 0"),
    "required": (_names, "a list of names"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list of at least one value"),
    "pattern": (lambda value: isinstance(value, str), "a regular expression"),
    "format": (lambda value: isinstance(value, str), "a name"),
    "$ref": (lambda value: isinstance(value, str), "a reference"),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    "dependentRequired": (
        lambda value: isinstance(value, dict) and all(map(_names, value.values())),
        "an object of lists of names",
    ),
    "dependentSchemas": _SCHEMAS,
    "dependencies": (lambda value: isinstance(value, dict), "an object"),
    "type": (
        lambda value: (
            value in TYPES
            if isinstance(value, str)
            else _names(value) and bool(value) and set(value) <= set(TYPES)
        ),
        f"one or several of {', '.join(TYPES)}",
    ),
}
"""What each keyword's value must be, as a test and in words."""


def unenforced(schema: Mapping[str, Any], *, root: bool) -> Iterator[tuple[str, str]]:
    """The keywords of one schema that no grammar is made of, and why."""
    for keyword in schema:
        if keyword in _ENFORCED or keyword in _ANNOTATIONS or keyword.startswith("x-"):
            continue
        if keyword == "$id" and root:
            continue
        if keyword in _PLAIN_ALONE and not any(other in schema for other in _EVALUATES):
            continue
        void = _VOID.get(keyword)
        if void is None:
            yield keyword, "it is not known"
        elif not void(schema):
            yield keyword, "no grammar is made of it"


class Gate(Protocol):
    """What reading one schema needs of the whole."""

    def ignore(self, pointer: str, keyword: str, why: str) -> None:
        """Takes note of a keyword that is left out."""
        ...

    def resolve(self, pointer: str) -> Schema:
        """The normal form of a referenced part."""
        ...

    def normal(self, schema: object, pointer: str, depth: int) -> Schema:
        """The normal form of one schema."""
        ...


class KeywordReader:
    """Brings the keywords of one schema, its combinations left aside, to normal form."""

    def __init__(self, gate: Gate, schema: Mapping[str, Any], pointer: str, depth: int) -> None:
        self._gate = gate
        self._schema = schema
        self._pointer = pointer
        self._depth = depth
        self._found: dict[str, Any] = {}

    def read(self) -> Schema:
        """The normal form, see ``schema_logic``."""
        schema, found = self._schema, self._found
        if "type" in schema:
            kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
            found["type"] = [k for k in kinds if k != "integer" or "number" not in kinds]
        self._read_string()
        self._read_number()
        self._read_array()
        self._read_object()
        if "enum" not in schema and "const" not in schema:
            return found
        values = schema.get("enum", [schema.get("const")])
        if "enum" in schema and "const" in schema:
            values = [value for value in values if holds({"enum": [schema["const"]]}, value, _none)]
        kept = [value for value in values if holds(found, value, self._gate.resolve)]
        return {"enum": kept} if kept else False

    def _read_string(self) -> None:
        schema, found = self._schema, self._found
        found |= {name: int(schema[name]) for name in GROUPS["string"][:2] if schema.get(name)}
        if "maxLength" in schema:
            found["maxLength"] = int(schema["maxLength"])
        if "pattern" in schema:
            try:
                search_pattern(schema["pattern"])
                found["pattern"] = schema["pattern"]
            except PatternUnsupported as reason:
                self._ignore("pattern", str(reason))
        if "format" in schema:
            if schema["format"] not in FORMATS:
                self._ignore(
                    "format", f"{schema['format']} is none of {', '.join(sorted(FORMATS))}"
                )
            elif "pattern" in found:
                self._ignore("format", "it stands beside pattern")
            else:
                found["format"] = schema["format"]
        for name in GROUPS["string"][:2]:
            if name in found and ("pattern" in found or "format" in found):
                del found[name]
                self._ignore(name, "it stands beside pattern or format")

    def _read_number(self) -> None:
        schema, found = self._schema, self._found
        for name in GROUPS["number"][:4]:
            if name not in schema:
                continue
            bound = schema[name]
            if not math.isfinite(bound) or abs(bound) > BOUND_LIMIT:
                self._ignore(name, f"bounds go up to {BOUND_LIMIT}")
                continue
            found[name] = int(bound) if bound == int(bound) else bound
        factor = schema.get("multipleOf")
        if factor is None:
            return
        if factor != int(factor) or factor > BOUND_LIMIT:
            self._ignore("multipleOf", "only multiples of integers are enforced")
        elif any(name in found for name in GROUPS["number"][:4]):
            self._ignore("multipleOf", "it stands beside bounds")
        else:
            found["multipleOf"] = int(factor)

    def _read_array(self) -> None:
        schema, found = self._schema, self._found
        head, rest, rest_name = schema.get("prefixItems"), schema.get("items"), "items"
        head_name = "prefixItems"
        if isinstance(rest, list):
            # The form of the drafts before 2020-12.
            head, rest, rest_name = rest, schema.get("additionalItems"), "additionalItems"
            head_name = "items"
        if rest is None and self._plain("unevaluatedItems"):
            rest, rest_name = schema["unevaluatedItems"], "unevaluatedItems"
        if head is not None:
            found["prefixItems"] = [
                self._inner(item, f"{head_name}/{place}") for place, item in enumerate(head)
            ]
        if rest is not None:
            found["items"] = self._inner(rest, rest_name)
        found |= {name: int(schema[name]) for name in GROUPS["array"][2:] if name in schema}

    def _read_object(self) -> None:
        schema, found = self._schema, self._found
        if "properties" in schema:
            found["properties"] = {
                name: self._inner(inner, f"properties/{escape_pointer(name)}")
                for name, inner in schema["properties"].items()
            }
        if schema.get("required"):
            found["required"] = list(dict.fromkeys(schema["required"]))
        for name in ("additionalProperties", "unevaluatedProperties"):
            if name in schema and (name == "additionalProperties" or self._plain(name)):
                found.setdefault("additionalProperties", self._inner(schema[name], name))
        if "propertyNames" in schema:
            found["propertyNames"] = self._inner(schema["propertyNames"], "propertyNames")
        if schema.get("patternProperties"):
            self._read_patterns(schema["patternProperties"])
        found |= {name: int(schema[name]) for name in GROUPS["object"][5:] if name in schema}
        if any(name in found for name in GROUPS["object"][4:]):
            found["at"] = self._pointer

    def _read_patterns(self, patterns: Mapping[str, Any]) -> None:
        """Patterns of names: of one schema, and no other names besides."""
        found, name = self._found, "patternProperties"
        try:
            for pattern in patterns:
                search_pattern(pattern)
            inner = [
                self._inner(schema, f"{name}/{escape_pointer(pattern)}")
                for pattern, schema in patterns.items()
            ]
            if any(other != inner[0] for other in inner):
                raise Inseparable("patterns with different schemas may overlap")
            if found.get("additionalProperties", False) is not False:
                raise Inseparable("additionalProperties stands beside it")
            joined = "|".join(patterns)
            declared = found.get("properties", {})
            named = {key for key in declared if re.search(joined, key)}
            for key in named:
                declared[key] = conjoin(declared[key], inner[0], self._gate.resolve)
        except (PatternUnsupported, Inseparable) as reason:
            self._ignore(name, str(reason))
            return
        found["additionalProperties"] = False
        if not named and inner[0] is not False:
            # A name that is declared and matches could else be written a second time.
            found[name] = {joined: inner[0]}

    def _plain(self, name: str) -> bool:
        return name in self._schema and not any(other in self._schema for other in _EVALUATES)

    def _inner(self, schema: object, place: str) -> Schema:
        return self._gate.normal(schema, f"{self._pointer}/{place}", self._depth + 1)

    def _ignore(self, keyword: str, why: str) -> None:
        self._gate.ignore(self._pointer, keyword, why)


def escape_pointer(part: str) -> str:
    """A name as a part of a JSON pointer."""
    return part.replace("~", "~0").replace("/", "~1")


def _none(pointer: str) -> Schema:
    raise SelfReference(pointer)
