"""The JSON Schema Test Suite against what the gate serves: no invalid value, and which valid
ones are given up."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from antiphon_llm.front.schema_gate import SchemaRefused, gate_schema
from antiphon_llm.front.schema_keywords import TYPES
from antiphon_llm.front.schema_logic import GROUPS

from .structured_kit import byte_backend, schema_grammar, spellings, takes

SUITE = Path(__file__).parents[2] / "data" / "json_schema_suite"
BACKEND = byte_backend()
TYPED = {name for names in GROUPS.values() for name in names}
TYPED |= {"unevaluatedProperties", "unevaluatedItems"}


def groups(pattern: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(SUITE.glob(pattern)):
        for group in json.loads(path.read_text()):
            yield f"{path.stem}: {group['description']}", group


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for inner in schema.values():
            yield from nodes(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from nodes(inner)


def given_up(schema: Any, value: Any) -> str:
    """Why a valid value is not generated, as the gate's documentation has it."""
    kinds = [node for node in nodes(schema) if "type" not in node]
    if any(name in node for node in kinds for name in TYPED):
        return "type implied"
    text = json.dumps(value)
    if any(isinstance(number, float) for number in numbers(value)):
        return "number spelled otherwise"
    return "needs an escape" if "\\" in text else ""


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from numbers(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def run(pattern: str, problems: list[str]) -> Counter[str]:
    """Every schema as a strict caller sends it; what contradicts the suite goes to ``problems``."""
    counts: Counter[str] = Counter()
    for name, group in groups(pattern):
        try:
            gated = gate_schema(group["schema"], strict=True)
        except SchemaRefused as refused:
            counts["refused" if refused.unsupported else "unsatisfiable or malformed"] += 1
            if not refused.unsupported and any(case["valid"] for case in group["tests"]):
                counts["satisfiable after all"] += 1
            continue
        counts["served"] += 1
        grammar = schema_grammar(BACKEND, gated.text)
        for case in group["tests"]:
            taken = any(takes(grammar, text) for text in spellings(case["data"]))
            counts["cases"] += 1
            if taken and not case["valid"]:
                problems.append(f"{name}: takes {case['data']}")
            if not taken and case["valid"]:
                why = given_up(group["schema"], case["data"])
                counts[why] += 1
                if not why:
                    problems.append(f"{name}: refuses {case['data']}")
    return counts


@pytest.mark.parametrize(
    ("pattern", "fewest", "most"),
    [
        (
            "*.json",
            {"served": 191, "cases": 616},
            {"refused": 121, "type implied": 63, "number spelled otherwise": 9},
        ),
        ("format/*.json", {"served": 15, "cases": 592}, {"type implied": 124}),
        ("optional/*.json", {"served": 15, "cases": 66}, {"refused": 7, "needs an escape": 5}),
    ],
)
def test_nothing_is_misserved_and_what_is_not_served_is_bounded(
    pattern: str, fewest: dict[str, int], most: dict[str, int]
) -> None:
    problems: list[str] = []
    counts = run(pattern, problems)
    assert not problems
    assert not counts["satisfiable after all"]
    for name, count in fewest.items():
        assert counts.pop(name) >= count, name
    counts.pop("unsatisfiable or malformed", None)
    assert {name: counts[name] for name in most} == most
    assert counts.keys() <= most.keys()


def test_a_lenient_caller_gets_a_grammar_for_every_schema_of_the_suite() -> None:
    for name, group in groups("*.json"):
        try:
            gated = gate_schema(group["schema"], strict=False)
        except SchemaRefused as refused:
            assert not refused.unsupported, name
            continue
        schema_grammar(BACKEND, gated.text)


def test_every_type_has_a_grammar() -> None:
    for kind in TYPES:
        schema_grammar(BACKEND, gate_schema({"type": kind}, strict=True).text)
