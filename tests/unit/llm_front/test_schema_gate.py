"""Which keywords are enforced, which are refused or named, and how what is served is written."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from antiphon_llm.front.schema_gate import SchemaRefused, check_schema, gate_schema
from antiphon_llm.front.schema_patterns import (
    FORMAT_PATTERNS,
    PatternUnsupported,
    any_name_but,
    length_pattern,
    search_pattern,
    whole_pattern,
)

INTEGER = {"type": "integer"}
OBJECT = {"type": "object", "additionalProperties": False}


def written(schema: Any, *, strict: bool = True) -> dict[str, Any]:
    return gate_schema(schema, strict=strict).schema


def refusal(schema: Any, *, strict: bool = True) -> SchemaRefused:
    with pytest.raises(SchemaRefused) as caught:
        gate_schema(schema, strict=strict)
    return caught.value


UNENFORCED = [
    ("not", {"not": INTEGER}, {}),
    ("if", {"if": INTEGER, "then": {"minimum": 3}}, {}),
    ("then", {"if": INTEGER, "then": {"minimum": 3}}, {}),
    ("else", {"if": INTEGER, "else": {"minimum": 3}}, {}),
    ("contains", {"type": "array", "contains": INTEGER}, {"type": "array"}),
    ("minContains", {"type": "array", "contains": {}, "minContains": 2}, {"type": "array"}),
    ("maxContains", {"type": "array", "contains": {}, "maxContains": 2}, {"type": "array"}),
    ("uniqueItems", {"type": "array", "uniqueItems": True}, {"type": "array"}),
    (
        "dependentRequired",
        {"type": "object", "dependentRequired": {"a": ["b"]}},
        {"type": "object"},
    ),
    ("dependentSchemas", {"type": "object", "dependentSchemas": {"a": {}}}, {"type": "object"}),
    ("dependencies", {"type": "object", "dependencies": {"a": ["b"]}}, {"type": "object"}),
    (
        "unevaluatedProperties",
        {"type": "object", "anyOf": [{}, {}], "unevaluatedProperties": False},
        {"type": "object"},
    ),
    (
        "unevaluatedItems",
        {"type": "array", "anyOf": [{}, {}], "unevaluatedItems": False},
        {"type": "array"},
    ),
    ("$ref", {"$ref": "https://example.test/other"}, {}),
    ("$dynamicRef", {"$dynamicRef": "#node"}, {}),
    ("multipleOf", {"type": "number", "multipleOf": 0.5}, {"type": "number"}),
    (
        "multipleOf",
        {"type": "integer", "multipleOf": 5, "minimum": 3},
        {"type": "integer", "minimum": 3},
    ),
    ("pattern", {"type": "string", "pattern": r"(\w)\1"}, {"type": "string"}),
    ("format", {"type": "string", "format": "idn-email"}, {"type": "string"}),
    ("minLength", {"type": "string", "format": "uuid", "minLength": 40}, None),
    ("maxLength", {"type": "string", "pattern": "^a+$", "maxLength": 4}, None),
    ("minimum", {"type": "number", "minimum": 1e300}, {"type": "number"}),
    ("minProperties", {"type": "object", "minProperties": 2}, {"type": "object"}),
    ("maxProperties", {"properties": {"a": {}}, "maxProperties": 3}, None),
    ("propertyNames", {"properties": {"a": {}}, "propertyNames": {"maxLength": 3}}, None),
    (
        "patternProperties",
        {"patternProperties": {"^a": INTEGER, "b$": {"type": "string"}}, "type": "object"},
        {"type": "object"},
    ),
    (
        "patternProperties",
        {"patternProperties": {"^a": INTEGER}, "additionalProperties": {"type": "string"}},
        {"type": "object", "additionalProperties": {"type": "string"}},
    ),
    ("oneOf", {"oneOf": [INTEGER, {"type": "number"}]}, {"anyOf": [INTEGER, {"type": "number"}]}),
    ("nullable", {"type": "string", "nullable": True}, {"type": "string"}),
    ("minLenght", {"type": "string", "minLenght": 3}, {"type": "string"}),
]


@pytest.mark.parametrize(("keyword", "schema", "served"), UNENFORCED)
def test_a_keyword_that_is_not_enforced_is_refused_or_named(
    keyword: str, schema: dict[str, Any], served: dict[str, Any] | None
) -> None:
    nested = {"type": "array", "items": schema}
    refused = refusal(nested)
    assert refused.unsupported
    assert refused.pointer.startswith("/items/")
    named = {item.keyword: item.pointer for item in check_schema(nested, strict=False)}
    assert named[keyword] == f"/items/{keyword}"
    if served is not None:
        # What is left is as if the keyword had not been there; neighbours keep their force.
        assert written(nested, strict=False) == {
            "type": "array",
            **({"items": served} if served else {}),
        }


@pytest.mark.parametrize(
    "schema",
    [
        {"not": False},
        {"if": INTEGER},
        {"then": INTEGER},
        {"contains": INTEGER, "minContains": 0},
        {"uniqueItems": False},
        {"dependentRequired": {"a": []}},
        {"unevaluatedProperties": True, "anyOf": [{}, INTEGER]},
        {"title": "t", "description": "d", "default": 1, "examples": [1], "x-own": {}},
    ],
)
def test_what_asks_for_nothing_is_no_reason_to_refuse(schema: dict[str, Any]) -> None:
    assert written(schema) == {}


@pytest.mark.parametrize(
    ("schema", "served"),
    [
        (True, {}),
        ({"minimum": 2.5, "type": "integer"}, {"type": "integer", "minimum": 3}),
        ({"exclusiveMaximum": 3, "type": "integer"}, {"type": "integer", "maximum": 2}),
        ({"exclusiveMinimum": 0, "minimum": 0}, {"type": "number", "exclusiveMinimum": 0}),
        ({"multipleOf": 5}, {"type": "integer", "multipleOf": 5}),
        ({"const": "a"}, {"enum": ["a"]}),
        ({"enum": ["a", "bb", 3], "type": "string", "minLength": 2}, {"enum": ["bb"]}),
        ({"allOf": [INTEGER, {"minimum": 3}]}, {"type": "integer", "minimum": 3}),
        ({"type": ["integer", "null"], "allOf": [{"minimum": 3}]}, None),
        ({"anyOf": [{"minimum": 3}, {"maximum": 1}], "type": "integer"}, None),
        ({"type": "array", "items": [INTEGER]}, {"type": "array", "prefixItems": [INTEGER]}),
        ({"prefixItems": [{}, {}, {}], "maxItems": 1}, None),
        ({"type": "object", "unevaluatedProperties": False}, OBJECT),
        ({"type": "array", "minItems": 2.0}, {"type": "array", "minItems": 2}),
        ({"type": "string", "maxLength": 200}, {"type": "string", "maxLength": 200}),
        ({"type": "string", "maxLength": 0}, {"enum": [""]}),
        ({"type": ["integer", "number"]}, {"type": "number"}),
        ({"propertyNames": {"pattern": "^a$"}}, None),
    ],
)
def test_schemas_are_written_so_that_the_compiler_holds_to_them(
    schema: Any, served: dict[str, Any] | None
) -> None:
    assert written(schema) == (served if served is not None else EXPECTED[json.dumps(schema)])


EXPECTED = {
    json.dumps(schema): served
    for schema, served in (
        (
            {"type": ["integer", "null"], "allOf": [{"minimum": 3}]},
            {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "null"}]},
        ),
        (
            {"anyOf": [{"minimum": 3}, {"maximum": 1}], "type": "integer"},
            {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 1}]},
        ),
        (
            {"prefixItems": [{}, {}, {}], "maxItems": 1},
            {"type": "array", "prefixItems": [{}], "items": False},
        ),
        (
            {"propertyNames": {"pattern": "^a$"}},
            {"type": "object", "propertyNames": {"pattern": "^(?:a)$"}},
        ),
    )
}


def test_open_names_leave_out_the_declared_ones() -> None:
    served = written({"type": "object", "properties": {"é": INTEGER}, "required": ["z"]})
    assert served["properties"] == {"é": INTEGER, "z": {}}
    assert served["required"] == ["z"]
    ((pattern, inner),) = served["patternProperties"].items()
    assert inner == {} and served["additionalProperties"] is False
    for name, free in (("é", False), ("z", False), ("", True), ("éz", True), ("zz", True)):
        assert bool(re.search(pattern, name)) == free, name


def test_branches_are_joined_with_each_others_bounds() -> None:
    base = {"properties": {"a": INTEGER}, "required": ["a"]}
    served = written(
        {
            "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"a": {"minimum": 3}}}],
            "properties": {"a": {}, "b": {"type": "string"}},
            "additionalProperties": False,
            "$defs": {"base": base},
        }
    )
    assert served["properties"] == {"a": INTEGER | {"minimum": 3}, "b": {"type": "string"}}
    assert served["required"] == ["a"]
    assert served["additionalProperties"] is False


def test_joining_a_required_name_that_another_branch_forbids_satisfies_nothing() -> None:
    schema = {
        "allOf": [{"properties": {"a": INTEGER}, "required": ["a"]}],
        "properties": {"b": {}},
        "additionalProperties": False,
    }
    assert "no value can satisfy" in str(refusal(schema))


def test_a_choice_by_a_discriminator_is_exact() -> None:
    def branch(kind: str) -> dict[str, Any]:
        return {"properties": {"kind": {"const": kind}}, "required": ["kind"], "type": "object"}

    schema = {"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}]}
    schema |= {"$defs": {"cat": branch("cat"), "dog": branch("dog")}}
    assert len(written(schema)["anyOf"]) == 2
    schema["$defs"]["dog"] = branch("cat")
    assert refusal(schema).keyword == "oneOf"


@pytest.mark.parametrize(
    "reference", ["#/$defs/a~1b", "#/$defs/a%2Fb".replace("%2F", "~1"), "#here", "#/allOf/0"]
)
def test_references_inside_the_schema_are_followed(reference: str) -> None:
    schema = {
        "type": "object",
        "properties": {"p": {"$ref": reference}},
        "additionalProperties": False,
        "allOf": [INTEGER],
        "$defs": {"a/b": INTEGER, "c": {"$anchor": "here", "type": "integer"}},
    }
    del schema["allOf"]
    if reference == "#/allOf/0":
        schema |= {"allOf": [{"$comment": "any"}]}
        assert written(schema)["$defs"] == {"d0": {}}
    else:
        assert written(schema)["$defs"] == {"d0": INTEGER}


def test_short_bounds_of_length_are_patterns_that_strings_share() -> None:
    bounded = {"type": "string", "minLength": 2, "maxLength": 5}
    served = written({"type": "array", "prefixItems": [bounded, bounded]})
    assert served["prefixItems"] == [{"$ref": "#/$defs/s2-5"}] * 2
    assert served["$defs"] == {"s2-5": {"type": "string", "pattern": length_pattern(2, 5)}}


def test_recursion_is_written_once() -> None:
    served = written({"properties": {"next": {"$ref": "#"}}, "additionalProperties": False})
    assert served["properties"]["next"] == {"$ref": "#/$defs/d0"}
    assert served["$defs"]["d0"]["properties"]["next"] == {"$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "text"}, "type"),
        ({"type": []}, "type"),
        ({"required": "a"}, "required"),
        ({"properties": []}, "properties"),
        ({"minLength": "2"}, "minLength"),
        ({"minItems": -1}, "minItems"),
        ({"enum": []}, "enum"),
        ({"anyOf": []}, "anyOf"),
        ({"multipleOf": 0}, "multipleOf"),
        ({"items": 3}, "items"),
        ({"exclusiveMinimum": True}, "exclusiveMinimum"),
        ({"$ref": "#/$defs/gone"}, "$ref"),
        ([], ""),
        (3, ""),
    ],
)
def test_malformed_schemas_are_refused_whether_strict_or_not(schema: Any, keyword: str) -> None:
    for strict in (True, False):
        refused = refusal(schema, strict=strict)
        assert refused.keyword == keyword
        assert not refused.unsupported


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"$ref": "#"},
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "string", "minLength": 3, "maxLength": 2},
        {"type": "array", "minItems": 3, "maxItems": 2},
        {"type": "array", "items": False, "minItems": 1},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"allOf": [INTEGER, {"type": "string"}]},
        {"enum": ["a"], "type": "integer"},
    ],
)
def test_what_nothing_satisfies_is_refused(schema: Any) -> None:
    assert "no value can satisfy" in str(refusal(schema, strict=False))


def test_depth_is_bounded() -> None:
    schema: Any = {}
    for _ in range(70):
        schema = {"type": "array", "items": schema}
    assert "nested more than" in str(refusal(schema, strict=False))
    definitions = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(3000)}
    definitions["d3000"] = {"minimum": 1}
    chain = {"allOf": [{"$ref": "#/$defs/d0"}], "type": "integer", "$defs": definitions}
    assert "too deep" in str(refusal(chain, strict=False))


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("a", ["a", "xay"], ["", "b"]),
        ("^a", ["a", "ab"], ["ba"]),
        ("a$", ["a", "ba"], ["ab"]),
        ("^a|b$", ["ax", "xb"], ["xa", "bx"]),
        ("^[^a]$", ["b"], ["a", '"']),
        (r"^\d{2,3}$", ["12", "123"], ["1", "1234"]),
        (r"^(ab)?$", ["", "ab"], ["a"]),
        ("^[ -~]+$", ["a b"], ['"', "\\"]),
        (r"^a\$$", ["a$"], ["a"]),
        (r"^\S$", ["x"], [" ", "\u00a0", '"']),
    ],
)
def test_patterns_search_and_leave_out_what_json_escapes(
    pattern: str, inside: list[str], outside: list[str]
) -> None:
    found = search_pattern(pattern)
    assert all(re.search(found, text) for text in inside)
    assert not any(re.search(found, text) for text in outside)


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)b", "(?<!a)b", r"(a)\1", r"\bfoo", "(?i)a", "a^b", "$a", "a{,2}", "a{2", "[z-a]",
        r"\p{L}", r"\cA", "(a", "a)", "*a", "[[:alpha:]]", "[", r'a"b', r"\\", r"\n", r"\u00",
        r"\ud83d", "(?<n>a)", "a{3,2}",
        "a{129}", "(?:[a-z]{1,20} ){1,20}", "a{100}" * 6,
    ],
)  # fmt: skip
def test_patterns_that_cannot_be_enforced_are_told(pattern: str) -> None:
    with pytest.raises(PatternUnsupported):
        search_pattern(pattern)


def test_plain_text_patterns_may_name_what_json_escapes() -> None:
    assert whole_pattern(r'say "\w+"\n?') == r'say "[0-9A-Z_a-z]+"(?:|\x0a)'
    assert whole_pattern(r"[^\D][^a-z]") == "[0-9][\\x00-`\\{-\ud7ff\ue000-\U0010ffff]"


def test_any_name_but_is_the_complement() -> None:
    names = ["", "a", "ab", "a]", "é", "x-y"]
    pattern = any_name_but(names)
    for text in [*names, "b", "aa", "abc", "éa", "x", "x-", "x-yz", "]"]:
        assert bool(re.search(pattern, text)) == (text not in names), text


def test_dates_know_their_calendar() -> None:
    date = FORMAT_PATTERNS["date"]
    for text in ("2024-02-29", "2000-02-29", "1999-12-31", "2023-04-30"):
        assert re.search(date, text), text
    for text in ("2023-02-29", "1900-02-29", "2023-04-31", "2023-13-01", "2023-00-10"):
        assert not re.search(date, text), text
