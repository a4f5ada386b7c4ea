"""Tells which JSON schemas the grammar compiler can hold to, and writes them so that it does.

The compiler (xgrammar 0.2.8, each keyword tried) silently widens ``not``, ``allOf`` of several,
``if``, ``contains``, ``uniqueItems``, ``dependentRequired``, remote references and much besides;
it drops the neighbours of ``$ref``, ``anyOf`` and ``enum``, required names that are not declared,
and ``minLength`` beside ``pattern``. A schema passes here first. What can be said in another way
is (see ``schema_logic`` and ``schema_writer``); what cannot is refused where the caller is strict,
and otherwise left out and named. So the output satisfies the schema, less the named keywords.

The grammar takes less than the schema allows in these ways: properties come in the order of their
declaration, keywords of one type imply that type, integers are written without fraction or
exponent, bounded numbers without exponent, and strings that a length or pattern bounds, as well as
additional names beside declared ones, without escapes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from antiphon_llm.front.schema_keywords import (
    JOINED,
    SHAPES,
    KeywordReader,
    escape_pointer,
    unenforced,
)
from antiphon_llm.front.schema_logic import (
    Inseparable,
    Schema,
    SelfReference,
    any_of,
    conjoin,
    disjoint,
)
from antiphon_llm.front.schema_writer import write_schema

DEPTH_LIMIT = 64
"""Schemas inside schemas: the compiler is quadratic, and then worse, in the depth."""


class SchemaRefused(ValueError):
    """The schema cannot be served.

    Attributes:
        pointer: JSON pointer of the part to blame.
        keyword: the keyword there; empty where the part itself is wrong.
        unsupported: True where the schema is right but cannot be enforced.
    """

    def __init__(self, pointer: str, keyword: str, why: str, *, unsupported: bool = False) -> None:
        super().__init__(f"{pointer or '/'}: {why}")
        self.pointer = pointer
        self.keyword = keyword
        self.unsupported = unsupported


@dataclass(frozen=True, slots=True)
class Ignored:
    """A keyword that is not enforced."""

    pointer: str
    """JSON pointer of the keyword."""
    keyword: str
    why: str

    def __str__(self) -> str:
        return f"schema keyword {self.keyword} at {self.pointer} is not enforced: {self.why}"


@dataclass(frozen=True, slots=True)
class GatedSchema:
    """A schema as the compiler is to have it."""

    schema: dict[str, Any]
    ignored: tuple[Ignored, ...]

    @property
    def text(self) -> str:
        """The schema as JSON; equal for equal schemas."""
        return json.dumps(self.schema, ensure_ascii=False, separators=(",", ":"))


def gate_schema(schema: object, *, strict: bool) -> GatedSchema:
    """Checks a schema and writes it for the compiler.

    Args:
        schema: decoded JSON of the 2020-12 draft, or of an older one's common part.
        strict: refuse what cannot be enforced instead of naming it.

    Raises:
        SchemaRefused: malformed, unsatisfiable, too deep, or with ``strict`` not enforceable.
    """
    gate = _Gate(schema)
    try:
        normal = gate.normal(schema, "", 0)
        written = write_schema(normal, gate.resolve, gate.ignore)
    except RecursionError:
        raise SchemaRefused("", "", "its references are nested too deep") from None
    except SelfReference:
        raise SchemaRefused("", "", "a reference defines itself") from None
    if isinstance(written, bool):
        raise SchemaRefused("", "", "no value can satisfy the schema")
    ignored = tuple(gate.ignored.values())
    if strict and ignored:
        first = ignored[0]
        raise SchemaRefused(
            first.pointer,
            first.keyword,
            f"{first.keyword} cannot be enforced: {first.why}",
            unsupported=True,
        )
    return GatedSchema(written, ignored)


def check_schema(schema: object, strict: bool) -> list[Ignored]:
    """The keywords of a schema that would not be enforced; raises as ``gate_schema`` does."""
    return list(gate_schema(schema, strict=strict).ignored)


class _Gate:
    """One schema's way to normal form."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._made: dict[str, Schema] = {}
        self._making: set[str] = set()
        self.ignored: dict[str, Ignored] = {}
        """By pointer, in the order of discovery."""

    def ignore(self, pointer: str, keyword: str, why: str) -> None:
        """Takes note of a keyword that is left out."""
        place = f"{pointer}/{escape_pointer(keyword)}"
        self.ignored.setdefault(place, Ignored(place, keyword, why))

    def resolve(self, pointer: str) -> Schema:
        """The normal form of a referenced part; SelfReference while it is being made."""
        if pointer in self._made:
            return self._made[pointer]
        if pointer in self._making:
            raise SelfReference(pointer)
        self._making.add(pointer)
        try:
            self._made[pointer] = self.normal(self._find(pointer), pointer, 0)
        finally:
            self._making.discard(pointer)
        return self._made[pointer]

    def normal(self, schema: object, pointer: str, depth: int) -> Schema:
        """The normal form of one schema."""
        if isinstance(schema, bool):
            return {} if schema else False
        if not isinstance(schema, dict):
            raise SchemaRefused(pointer, "", "a schema must be an object, true or false")
        if depth > DEPTH_LIMIT:
            raise SchemaRefused(pointer, "", f"schemas are nested more than {DEPTH_LIMIT} deep")
        for keyword, value in schema.items():
            shape = SHAPES.get(keyword)
            if shape is not None and not shape[0](value):
                raise SchemaRefused(pointer, keyword, f"{keyword} must be {shape[1]}")
        for keyword, why in unenforced(schema, root=not pointer):
            self.ignore(pointer, keyword, why)
        found = KeywordReader(self, schema, pointer, depth).read()
        for keyword in JOINED:
            if keyword not in schema:
                continue
            try:
                found = conjoin(found, self._joined(keyword, schema, pointer, depth), self.resolve)
            except Inseparable as reason:
                self.ignore(pointer, keyword, str(reason))
        return found

    def _joined(self, keyword: str, schema: dict[str, Any], pointer: str, depth: int) -> Schema:
        """What ``$ref``, ``allOf``, ``anyOf`` or ``oneOf`` asks for."""
        if keyword == "$ref":
            return {"$ref": self._target(schema["$ref"], pointer)}
        branches = [
            self.normal(branch, f"{pointer}/{keyword}/{place}", depth + 1)
            for place, branch in enumerate(schema[keyword])
        ]
        if keyword == "allOf":
            found: Schema = {}
            for branch in branches:
                found = conjoin(found, branch, self.resolve)
            return found
        if keyword == "oneOf":
            self._note_overlaps(branches, pointer)
        return any_of(branches)

    def _note_overlaps(self, branches: list[Schema], pointer: str) -> None:
        for place, branch in enumerate(branches):
            for other in branches[:place]:
                if not disjoint(branch, other, self.resolve):
                    why = "its branches may overlap, so that it is served as anyOf"
                    self.ignore(pointer, "oneOf", why)
                    return

    def _target(self, reference: str, pointer: str) -> str:
        """The pointer that a reference stands for; it leads to a schema of this document."""
        self._find(pointer)
        if reference != "#" and not reference.startswith("#/"):
            anchored = _anchors(self._root).get(reference.removeprefix("#"))
            if not reference.startswith("#") or anchored is None:
                raise Inseparable("only references inside the schema are followed")
            return anchored
        target = reference[1:]
        if not isinstance(self._find(target), dict | bool):
            raise SchemaRefused(pointer, "$ref", f"{reference} leads to no schema")
        return target

    def _find(self, pointer: str) -> object:
        place: Any = self._root
        for part in pointer.split("/")[1:]:
            key = _unescape(part)
            if isinstance(place, dict) and key in place:
                place = place[key]
            elif isinstance(place, list) and key.isdecimal() and int(key) < len(place):
                place = place[int(key)]
            else:
                return None
            if isinstance(place, dict) and "$id" in place:
                raise Inseparable("schemas with an $id of their own are not looked into")
        return place


def _anchors(schema: object, pointer: str = "") -> dict[str, str]:
    """Pointers of the parts that have an ``$anchor``, outside of schemas with an ``$id``."""
    found: dict[str, str] = {}
    if isinstance(schema, dict):
        if pointer and "$id" in schema:
            return found
        if isinstance(schema.get("$anchor"), str):
            found[schema["$anchor"]] = pointer
        for key, inner in schema.items():
            if key not in ("enum", "const", "default", "examples"):
                found |= _anchors(inner, f"{pointer}/{escape_pointer(key)}")
    elif isinstance(schema, list):
        for place, inner in enumerate(schema):
            found |= _anchors(inner, f"{pointer}/{place}")
    return found


def _unescape(part: str) -> str:
    return unquote(part).replace("~1", "/").replace("~0", "~")
