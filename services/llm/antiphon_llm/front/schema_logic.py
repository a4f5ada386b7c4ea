"""What schemas mean: whether a value satisfies one, both of two, or none can satisfy both.

Schemas stand in the normal form that the gate makes: ``False``, ``{"$ref": pointer}``,
``{"anyOf": [...]}``, ``{"enum": [...]}`` or an object of keywords, where ``type`` is a list and
an absent one allows every type. ``{}`` allows everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any] | bool
Resolve = Callable[[str], Schema]
"""The schema that a pointer leads to; raises SelfReference where it is being made."""

GROUPS: dict[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("prefixItems", "items", "minItems", "maxItems"),
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
    ),
}
"""The keywords that bound values of one type only; number's bound integers too."""
BRANCH_LIMIT = 256
"""Alternatives that the product of two choices may have."""

_LARGEST = ("minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum")
_SMALLEST = ("maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum")


class SelfReference(Exception):
    """A schema is needed to tell what it is itself."""


class Inseparable(Exception):
    """Two schemas whose conjunction has no normal form."""


def types_of(value: object) -> set[str]:
    """The names of a JSON value's types; an integral number has two."""
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return {"integer", "number"}
    if isinstance(value, float):
        return {"number"}
    return {
        "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"
    }


def holds(schema: Schema, value: Any, resolve: Resolve) -> bool:
    """Whether a value satisfies a schema."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return holds(resolve(schema["$ref"]), value, resolve)
    if "anyOf" in schema:
        return any(holds(branch, value, resolve) for branch in schema["anyOf"])
    if "enum" in schema:
        return any(same(value, item) for item in schema["enum"])
    kinds = types_of(value)
    if "type" in schema and not kinds & set(schema["type"]):
        return False
    if "string" in kinds:
        return _string_holds(schema, value)
    if "number" in kinds:
        return _number_holds(schema, value)
    if "array" in kinds:
        return _array_holds(schema, value, resolve)
    return "object" not in kinds or _object_holds(schema, value, resolve)


def same(left: Any, right: Any) -> bool:
    """Equality of JSON values: 1 is 1.0 and not true."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return left == right


def conjoin(left: Schema, right: Schema, resolve: Resolve) -> Schema:
    """The schema of the values that satisfy both.

    Raises:
        Inseparable: it cannot be written.
    """
    if left is False or right is False:
        return False
    left, right = ({} if side is True else side for side in (left, right))
    if not left or left == right:
        return right
    if not right:
        return left
    for one, other in ((left, right), (right, left)):
        if "$ref" in one:
            return conjoin(_inline(one, resolve), other, resolve)
        if "anyOf" in one:
            return _distribute(one["anyOf"], other, resolve)
        if "enum" in one:
            values = [value for value in one["enum"] if holds(other, value, resolve)]
            return {"enum": values} if values else False
    return _conjoin_keywords(left, right, resolve)


def disjoint(left: Schema, right: Schema, resolve: Resolve, depth: int = 8) -> bool:
    """Whether it is certain that no value satisfies both."""
    if left is False or right is False:
        return True
    if isinstance(left, bool) or isinstance(right, bool) or not depth:
        return False
    for one, other in ((left, right), (right, left)):
        if "$ref" in one:
            try:
                return disjoint(_inline(one, resolve), other, resolve, depth - 1)
            except Inseparable:
                return False
        if "anyOf" in one:
            return all(disjoint(branch, other, resolve, depth) for branch in one["anyOf"])
        if "enum" in one:
            return not any(holds(other, value, resolve) for value in one["enum"])
    if "type" not in left or "type" not in right:
        return False
    common = _common_types(left["type"], right["type"])
    if common != ["object"]:
        return not common
    return any(
        disjoint(property_of(left, name), property_of(right, name), resolve, depth - 1)
        for name in {*left.get("required", ()), *right.get("required", ())}
    )


def property_of(schema: Mapping[str, Any], name: str) -> Schema:
    """What an object schema asks of a property; True where it may be anything."""
    declared = schema.get("properties", {})
    if name in declared:
        return declared[name]
    for pattern, inner in schema.get("patternProperties", {}).items():
        if re.search(pattern, name):
            return inner
    return schema.get("additionalProperties", True)


def _inline(reference: Mapping[str, Any], resolve: Resolve) -> Schema:
    try:
        return resolve(reference["$ref"])
    except SelfReference:
        raise Inseparable("it refers to itself") from None


def _distribute(branches: list[Schema], other: Schema, resolve: Resolve) -> Schema:
    found = [conjoin(branch, other, resolve) for branch in branches]
    return any_of(found)


def any_of(branches: list[Schema]) -> Schema:
    """One schema for a choice; branches that nothing satisfies are left out."""
    flat: list[Schema] = []
    for branch in branches:
        nested = branch.get("anyOf") if isinstance(branch, Mapping) else None
        flat.extend(nested if nested is not None else [branch])
    flat = [branch for branch in flat if branch is not False]
    if len(flat) > BRANCH_LIMIT:
        raise Inseparable(f"its alternatives multiply to more than {BRANCH_LIMIT}")
    if any(branch is True or not branch for branch in flat):
        return {}
    if len(flat) < 2:
        return flat[0] if flat else False
    return {"anyOf": flat}


def _conjoin_keywords(
    left: Mapping[str, Any], right: Mapping[str, Any], resolve: Resolve
) -> Schema:
    merged: dict[str, Any] = {**right, **left}
    for name in left.keys() & right.keys():
        one, other = left[name], right[name]
        if name in _LARGEST:
            merged[name] = max(one, other)
        elif name in _SMALLEST:
            merged[name] = min(one, other)
        elif name == "type":
            merged[name] = _common_types(one, other)
            if not merged[name]:
                return False
        elif name in ("multipleOf", "pattern", "format", "propertyNames") and one != other:
            raise Inseparable(f"{name} stands on both sides")
    if ("pattern" in merged or "format" in merged) and (
        "minLength" in merged
        or "maxLength" in merged
        or ("pattern" in merged and "format" in merged)
    ):
        raise Inseparable("pattern, format and length bounds do not go together")
    if "multipleOf" in merged and any(name in merged for name in GROUPS["number"][:4]):
        raise Inseparable("multipleOf and bounds do not go together")
    if any(name in side for side in (left, right) for name in GROUPS["array"][:2]):
        merged |= _conjoin_items(left, right, resolve)
    if any(name in side for side in (left, right) for name in GROUPS["object"][:4]):
        merged |= _conjoin_properties(left, right, resolve)
    return merged


def _common_types(left: list[str], right: list[str]) -> list[str]:
    common = [kind for kind in left if kind in right]
    for one, other in ((left, right), (right, left)):
        if "integer" in one and "number" in other and "integer" not in common:
            common.append("integer")
    return [kind for kind in common if kind != "integer" or "number" not in common]


def _conjoin_items(
    left: Mapping[str, Any], right: Mapping[str, Any], resolve: Resolve
) -> dict[str, Any]:
    heads = [side.get("prefixItems", []) for side in (left, right)]
    rests = [side.get("items", True) for side in (left, right)]
    merged: dict[str, Any] = {"items": conjoin(rests[0], rests[1], resolve)}
    length = max(map(len, heads))
    if length:
        places = (
            [
                head[place] if place < len(head) else rest
                for head, rest in zip(heads, rests, strict=True)
            ]
            for place in range(length)
        )
        merged["prefixItems"] = [conjoin(one, other, resolve) for one, other in places]
    return merged


def _conjoin_properties(
    left: Mapping[str, Any], right: Mapping[str, Any], resolve: Resolve
) -> dict[str, Any]:
    if "patternProperties" in left or "patternProperties" in right:
        raise Inseparable("patternProperties cannot be joined")
    names = [*left.get("properties", {}), *right.get("properties", {})]
    return {
        "properties": {
            name: conjoin(property_of(left, name), property_of(right, name), resolve)
            for name in dict.fromkeys(names)
        },
        "additionalProperties": conjoin(
            left.get("additionalProperties", True),
            right.get("additionalProperties", True),
            resolve,
        ),
        "required": list(dict.fromkeys([*left.get("required", ()), *right.get("required", ())])),
    }


def _string_holds(schema: Mapping[str, Any], value: str) -> bool:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        return False
    return "pattern" not in schema or re.search(schema["pattern"], value, re.ASCII) is not None


def _number_holds(schema: Mapping[str, Any], value: float) -> bool:
    if value < schema.get("minimum", value) or value > schema.get("maximum", value):
        return False
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        return False
    if "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
        return False
    return value % schema.get("multipleOf", 1) == 0 if "multipleOf" in schema else True


def _array_holds(schema: Mapping[str, Any], value: list[Any], resolve: Resolve) -> bool:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        return False
    head, rest = schema.get("prefixItems", []), schema.get("items", True)
    return all(
        holds(head[place] if place < len(head) else rest, item, resolve)
        for place, item in enumerate(value)
    )


def _object_holds(schema: Mapping[str, Any], value: dict[str, Any], resolve: Resolve) -> bool:
    if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value)):
        return False
    if any(name not in value for name in schema.get("required", ())):
        return False
    names = schema.get("propertyNames", True)
    return all(
        holds(property_of(schema, name), item, resolve) and holds(names, name, resolve)
        for name, item in value.items()
    )
