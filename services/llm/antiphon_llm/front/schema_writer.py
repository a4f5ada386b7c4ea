"""Writes a schema in normal form as the grammar compiler reads it exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from antiphon_llm.front.schema_logic import GROUPS, Resolve, Schema, holds, property_of
from antiphon_llm.front.schema_patterns import (
    FORMAT_PATTERNS,
    REPEAT_LIMIT,
    any_name_but,
    can_spell,
    length_pattern,
    search_pattern,
)

Ignore = Callable[[str, str, str], None]
"""Takes the pointer of a schema, a keyword there, and why it is not enforced."""


def write_schema(schema: Schema, resolve: Resolve, ignore: Ignore) -> dict[str, Any] | bool:
    """The schema for the compiler; False where nothing satisfies it."""
    writer = _Writer(resolve, ignore)
    written = writer.write(schema)
    if isinstance(written, bool):
        return False
    if writer.definitions:
        written = {**written, "$defs": writer.definitions}
    return written


class _Writer:
    """Writes what is referred to once, under a name of its own."""

    def __init__(self, resolve: Resolve, ignore: Ignore) -> None:
        self._resolve = resolve
        self._ignore = ignore
        self._names: dict[str, str] = {}
        self.definitions: dict[str, Any] = {}

    def write(self, schema: Schema) -> Any:
        """An object, or False where nothing satisfies the schema."""
        if isinstance(schema, bool):
            return {} if schema else False
        if "$ref" in schema:
            return self._reference(schema["$ref"])
        if "anyOf" in schema:
            return _choice([self.write(branch) for branch in schema["anyOf"]])
        if "enum" in schema:
            return {"enum": schema["enum"]}
        kinds = schema.get("type") or [
            kind for kind, names in GROUPS.items() if any(name in schema for name in names)
        ]
        if not kinds:
            return {}
        return _choice([self._of_type(kind, schema) for kind in kinds])

    def _reference(self, pointer: str) -> Any:
        seen = {pointer}
        target = self._resolve(pointer)
        while isinstance(target, Mapping) and "$ref" in target:
            pointer = target["$ref"]
            if pointer in seen:
                return False
            seen.add(pointer)
            target = self._resolve(pointer)
        name = self._names.get(pointer)
        if name is None:
            name = self._names[pointer] = f"d{len(self._names)}"
            self.definitions[name] = None
            written = self.write(target)
            if written is False:
                # What refers to it from within would be left without a target.
                self.definitions[name] = {"enum": []}
                return False
            self.definitions[name] = written
        return {"$ref": f"#/$defs/{name}"}

    def _of_type(self, kind: str, schema: Mapping[str, Any]) -> Any:
        if kind == "string":
            return self._string(schema)
        if kind in ("integer", "number"):
            return _number(schema, integral=kind == "integer" or "multipleOf" in schema)
        if kind == "array":
            return self._array(schema)
        return self._object(schema) if kind == "object" else {"type": kind}

    def _string(self, schema: Mapping[str, Any]) -> Any:
        fewest, most = schema.get("minLength", 0), schema.get("maxLength")
        if most is not None and fewest > most:
            return False
        written: dict[str, Any] = {"type": "string"}
        if "pattern" in schema:
            written["pattern"] = search_pattern(schema["pattern"])
        elif schema.get("format") in FORMAT_PATTERNS:
            written["pattern"] = FORMAT_PATTERNS[schema["format"]]
        elif "format" in schema:
            written["format"] = schema["format"]
        elif fewest or most is not None:
            return self._string_of_length(fewest, most)
        return written

    def _string_of_length(self, fewest: int, most: int | None) -> dict[str, Any]:
        """As a pattern, which costs half of a length where it is short, and is shared by all
        strings of the same bounds; a long one is dear while it is matched."""
        if max(fewest, most or 0) > REPEAT_LIMIT:
            bounds = {"minLength": fewest, "maxLength": most}
            return {"type": "string", **{name: n for name, n in bounds.items() if n}}
        if most == 0:
            return {"enum": [""]}
        name = f"s{fewest}-{most}"
        self.definitions[name] = {"type": "string", "pattern": length_pattern(fewest, most)}
        return {"$ref": f"#/$defs/{name}"}

    def _array(self, schema: Mapping[str, Any]) -> Any:
        head = [self.write(item) for item in schema.get("prefixItems", ())]
        rest = self.write(schema.get("items", True))
        fewest, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        if False in head:
            most = min(most, head.index(False))
        if rest is False:
            most = min(most, len(head))
        if fewest > most:
            return False
        written: dict[str, Any] = {"type": "array"}
        if fewest:
            written["minItems"] = fewest
        if most <= len(head):
            head, rest = head[: int(most)], False
        elif most < math.inf:
            written["maxItems"] = most
        if head:
            written["prefixItems"] = head
        if rest is False and not head:
            written["maxItems"] = 0
        elif rest != {}:
            written["items"] = rest
        return written

    def _object(self, schema: Mapping[str, Any]) -> Any:
        required = schema.get("required", [])
        names = dict.fromkeys([*schema.get("properties", ()), *required])
        properties = {}
        for name in names:
            allowed = holds(schema.get("propertyNames", True), name, self._resolve)
            inner = self.write(property_of(schema, name)) if allowed else False
            if inner is not False:
                properties[name] = inner
            elif name in required:
                return False
        written: dict[str, Any] = {"type": "object"}
        if properties:
            written |= {"properties": properties, "required": list(required)}
        others = self.write(schema.get("additionalProperties", True))
        if "patternProperties" in schema:
            ((pattern, inner),) = schema["patternProperties"].items()
            written["patternProperties"] = {search_pattern(pattern): self.write(inner)}
            written["additionalProperties"] = False
        elif others is False:
            written["additionalProperties"] = False
        elif names:
            free = [name for name in names if can_spell(name)]
            written["patternProperties"] = {any_name_but(free): others}
            written["additionalProperties"] = False
        else:
            self._write_names(schema, written, others)
        return self._counted(schema, written)

    def _write_names(self, schema: Mapping[str, Any], written: dict[str, Any], others: Any) -> None:
        """An object without declared names."""
        names = schema.get("propertyNames", True)
        if names is not True and names != {}:
            rule = self._inlined(names)
            if rule is False:
                written["maxProperties"] = 0
                return
            if "anyOf" in rule or others != {}:
                self._leave_out(schema, "propertyNames", "it is no simple bound of free values")
            else:
                written["propertyNames"] = {k: v for k, v in rule.items() if k != "type"}
                return
        if others != {}:
            written["additionalProperties"] = others

    def _inlined(self, names: Schema) -> Any:
        """The schema of names without a reference: the compiler follows none there."""
        if isinstance(names, Mapping) and _only_keywords(names):
            names = {**names, "type": ["string"]}
        rule = self.write(names)
        while rule is not False and "$ref" in rule:
            rule = self.definitions[rule["$ref"].rpartition("/")[2]]
        return rule

    def _counted(self, schema: Mapping[str, Any], written: dict[str, Any]) -> Any:
        """With the bounds of the number of properties, as far as the compiler counts them."""
        required = len(written.get("required", ()))
        declared = len(written.get("properties", ()))
        patterned = "patternProperties" in written
        closed = written.get("additionalProperties") is False and not patterned
        fewest = schema.get("minProperties", 0)
        most = min(schema.get("maxProperties", math.inf), written.get("maxProperties", math.inf))
        if closed:
            most = min(most, declared)
        if fewest > most or required > most:
            return False
        if patterned and "propertyNames" in schema:
            self._leave_out(schema, "propertyNames", "it stands beside declared names")
        if fewest > required:
            # A free name may be written twice, which makes one property.
            if patterned or (not closed and fewest > 1):
                self._leave_out(schema, "minProperties", "names that are not declared may repeat")
            else:
                written["minProperties"] = fewest
        if most < math.inf and not (closed and most == declared):
            if patterned:
                self._leave_out(schema, "maxProperties", "it stands beside names that are free")
            else:
                written["maxProperties"] = most
        return written

    def _leave_out(self, schema: Mapping[str, Any], keyword: str, why: str) -> None:
        if keyword in schema:
            self._ignore(schema["at"], keyword, why)


def _only_keywords(schema: Mapping[str, Any]) -> bool:
    return not {"$ref", "anyOf", "enum", "type"} & schema.keys()


def _choice(branches: list[Any]) -> Any:
    found = [branch for branch in branches if branch is not False]
    if not found:
        return False
    if {} in found:
        return {}
    return found[0] if len(found) == 1 else {"anyOf": found}


def _number(schema: Mapping[str, Any], *, integral: bool) -> Any:
    """Bounds are brought to one on each side, for integers to whole numbers."""
    low, open_low = schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf)
    high, open_high = schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf)
    if integral:
        if open_low > -math.inf:
            low = max(low, math.floor(open_low) + 1)
        if open_high < math.inf:
            high = min(high, math.ceil(open_high) - 1)
        low = math.ceil(low) if low > -math.inf else low
        high = math.floor(high) if high < math.inf else high
        open_low, open_high = -math.inf, math.inf
    # The stricter one of each side is kept; of equal ones that is the open one.
    low_name = "exclusiveMinimum" if open_low >= low else "minimum"
    high_name = "exclusiveMaximum" if open_high <= high else "maximum"
    low, high = max(low, open_low), min(high, open_high)
    if low > high or (low == high and "exclusive" in low_name + high_name):
        return False
    written: dict[str, Any] = {"type": "integer" if integral else "number"}
    if low > -math.inf:
        written[low_name] = low
    if high < math.inf:
        written[high_name] = high
    if schema.get("multipleOf", 1) != 1:
        written["multipleOf"] = schema["multipleOf"]
    return written
