"""Random JSON schemas of the kinds that callers send, each accepted by the gate in strict mode."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import jsonschema
from antiphon_llm.front.schema_gate import GatedSchema, SchemaRefused, gate_schema

Schema = dict[str, Any]
_NAMES = ("name", "id", "age", "tags", "kind", "note", "x", "y", "items", "unit", "größe", "a b")
_WORDS = ("red", "green", "blue", "small", "large", "on", "off", "42", "né")
_PATTERNS = ("^[a-z]{2,6}$", "^[A-Z][a-z]+$", r"^\d{3}-\d{2}$", "^(ab|cd)*e$", "x$", "^v[0-9]")
_FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email", "hostname")
_DEPTH = 3


def random_schemas(seed: int, count: int) -> list[tuple[Schema, GatedSchema]]:
    """So many satisfiable schemas, as they are and as the compiler gets them."""
    chance = random.Random(seed)
    found: list[tuple[Schema, GatedSchema]] = []
    while len(found) < count:
        schema = _document(chance)
        try:
            found.append((schema, gate_schema(schema, strict=True)))
        except SchemaRefused as refused:
            # By chance some contradict themselves, or have branches that may overlap.
            assert refused.unsupported or "no value can satisfy" in str(refused), schema
    return found


def fault(schema: Schema, text: str) -> str:
    """What is wrong with an output; empty where it is a value of the schema.

    Numbers are compared as they are written, not as the nearest binary ones.
    """
    try:
        value = json.loads(text, parse_float=Decimal)
    except ValueError as error:
        return f"no JSON: {error}"
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    errors = jsonschema.Draft202012Validator(exact).iter_errors(value)
    return "; ".join(error.message for error in errors)


def longest_blank(text: str) -> int:
    """The longest run of white space outside of strings."""
    longest = run = 0
    inside = escaped = False
    for character in text:
        if inside:
            inside = escaped or character != '"'
            escaped = character == "\\" and not escaped
            continue
        inside, run = character == '"', run + 1 if character in " \n\r\t" else 0
        longest = max(longest, run)
    return longest


def _document(chance: random.Random) -> Schema:
    if chance.random() < 0.1:
        return _tree(chance)
    if chance.random() < 0.1:
        return {"oneOf": [_branch(chance, word) for word in chance.sample(_WORDS, 3)]}
    return _object(chance, 0) if chance.random() < 0.7 else _value(chance, 0)


def _tree(chance: random.Random) -> Schema:
    node = _object(chance, _DEPTH - 1)
    node["properties"]["more"] = {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}
    return node


def _branch(chance: random.Random, word: str) -> Schema:
    branch = _object(chance, _DEPTH - 1)
    branch["properties"]["type"] = {"const": word}
    branch["required"] = ["type", *branch.get("required", ())]
    return branch


def _value(chance: random.Random, depth: int) -> Schema:
    makers = [_string, _string, _number, _number, _enum, _simple]
    if depth < _DEPTH:
        makers += [_object, _array, _choice, _joined]
    return chance.choice(makers)(chance, depth)


def _object(chance: random.Random, depth: int) -> Schema:
    names = chance.sample(_NAMES, chance.randint(1, 4))
    schema: Schema = {
        "type": "object",
        "properties": {name: _value(chance, depth + 1) for name in names},
    }
    if chance.random() < 0.8:
        schema["required"] = chance.sample(names, chance.randint(0, len(names)))
    if chance.random() < 0.8:
        schema["additionalProperties"] = False
    elif chance.random() < 0.5:
        schema["additionalProperties"] = {"type": "integer", "minimum": 0, "maximum": 99}
    return schema


def _array(chance: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "array", "maxItems": chance.randint(1, 4)}
    if chance.random() < 0.3:
        head = [_value(chance, depth + 1) for _ in range(chance.randint(1, 2))]
        schema |= {"prefixItems": head, "items": False}
    else:
        schema["items"] = _value(chance, depth + 1)
    if chance.random() < 0.4:
        schema["minItems"] = 1
    return schema


def _choice(chance: random.Random, depth: int) -> Schema:
    return {"anyOf": [_value(chance, depth + 1) for _ in range(chance.randint(2, 3))]}


def _joined(chance: random.Random, depth: int) -> Schema:
    return {"allOf": [_number(chance, depth), {"minimum": chance.randint(-9, 9)}]}


def _string(chance: random.Random, depth: int) -> Schema:
    kind = chance.random()
    if kind < 0.2:
        return {"type": "string", "pattern": chance.choice(_PATTERNS)}
    if kind < 0.35:
        return {"type": "string", "format": chance.choice(_FORMATS)}
    bounds = {"minLength": chance.choice((0, 1, 3)), "maxLength": chance.choice((3, 8, 20))}
    return {"type": "string", **bounds}


def _number(chance: random.Random, depth: int) -> Schema:
    if chance.random() < 0.2:
        return {"type": "integer", "multipleOf": chance.randint(2, 12)}
    whole = chance.random() < 0.6
    low = chance.randint(-50, 50) if whole else round(chance.uniform(-5, 5), 2)
    high = low + (chance.randint(1, 400) if whole else round(chance.uniform(0.5, 9), 2))
    bounds = {chance.choice(("minimum", "exclusiveMinimum")): low}
    bounds[chance.choice(("maximum", "exclusiveMaximum"))] = round(high, 2)
    return {"type": "integer" if whole and chance.random() < 0.8 else "number", **bounds}


def _enum(chance: random.Random, depth: int) -> Schema:
    values: list[Any] = chance.sample(_WORDS, chance.randint(1, 4))
    if chance.random() < 0.3:
        values += [None, 7, {"a": [1]}]
    return {"enum": values}


def _simple(chance: random.Random, depth: int) -> Schema:
    return {"type": chance.choice(("boolean", "null", "integer"))}
