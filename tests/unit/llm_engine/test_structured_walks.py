"""Random walks through grammars: whatever a grammar can say satisfies the schema or pattern."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from antiphon_llm.front.schema_gate import SchemaRefused, gate_schema
from antiphon_llm.front.schema_patterns import (
    PatternUnsupported,
    can_spell,
    whole_pattern,
)
from antiphon_llm.messages import Constraint
from antiphon_llm.structured.backend import Grammar

from bench.random_schemas import fault, longest_blank, random_schemas

from .structured_kit import END, byte_backend, ids_of, schema_grammar, takes

BLANKS = 2
BACKEND = byte_backend(BLANKS)
STEPS = 600


def walk(grammar: Grammar, chance: random.Random) -> str | None:
    """A text of the grammar, None where it becomes too long."""
    matcher = grammar.matcher([END])
    text = bytearray()
    for _ in range(STEPS):
        ids = ids_of(matcher)
        # Ends and closing quotes are likelier than among equals, so that most walks end. Of
        # characters beyond ASCII the first bytes that have one continuation range are taken: in
        # strings without a bound the library allows overlong forms behind the others.
        ids -= {0xE0, 0xED, 0xF0, 0xF4}
        likely = [token for token in (END, 0x22, 0x7D, 0x5D) if token in ids]
        token = chance.choice(likely if likely and chance.random() < 0.4 else sorted(ids))
        assert matcher.accept(token)
        if token == END:
            return text.decode()
        text.append(token)
    return None


def test_whatever_a_schema_s_grammar_says_is_valid() -> None:
    chance = random.Random(2)
    ended = 0
    for schema, gated in random_schemas(seed=7, count=150):
        grammar = schema_grammar(BACKEND, gated.text)
        for _ in range(4):
            text = walk(grammar, chance)
            if text is None:
                continue
            ended += 1
            assert fault(schema, text) == "", (schema, gated.text, text)
            # The empty list of a tuple has two places for blanks side by side.
            assert longest_blank(text) <= 2 * BLANKS
    assert ended > 500


ATOMS = [
    *"abc1 é.", r"\d", r"\w", r"\s", r"\S", r"\D", r"\W", "[abc]", "[^a]", "[a-c1]", r"[\d.]",
    "[ -~]", r"\.", r"\/", r"\-", r"[a\-c]", "[-a]", "[!-#]", r"\u0061", r"[^\d]",
]  # fmt: skip
REPEATS = ["", "", "", "*", "+", "?", "{2}", "{1,2}", "{1,}", "*?"]


def pattern(chance: random.Random) -> str:
    def part(depth: int) -> str:
        found = ""
        for _ in range(chance.randint(1, 3)):
            if depth > 2 or chance.random() < 0.75:
                atom = chance.choice(ATOMS)
            else:
                others = f"|{part(depth + 1)}" if chance.random() < 0.5 else ""
                atom = f"({chance.choice(('', '?:'))}{part(depth + 1)}{others})"
            found += atom + chance.choice(REPEATS)
        return found

    return "|".join(
        chance.choice(("", "^")) + part(0) + chance.choice(("", "$"))
        for _ in range(chance.choice((1, 1, 1, 2)))
    )


def test_patterns_mean_the_same_to_the_grammar_and_to_python() -> None:
    chance = random.Random(4)
    tried = 0
    while tried < 250:
        source = pattern(chance)
        try:
            gated = gate_schema({"type": "string", "pattern": source}, strict=True)
        except SchemaRefused:
            continue
        tried += 1
        grammar = schema_grammar(BACKEND, gated.text)
        for _ in range(12):
            text = "".join(chance.choice('abc1 é.-/"\\\nxA!#') for _ in range(chance.randint(0, 5)))
            wanted = re.search(source, text, re.ASCII) is not None
            taken = takes(grammar, json.dumps(text, ensure_ascii=False))
            # What JSON escapes is given up, never taken wrongly.
            assert taken <= wanted, (source, text)
            assert taken == wanted or not all(map(can_spell, text)), (source, text)


def test_whole_patterns_mean_the_same_too() -> None:
    chance = random.Random(6)
    tried = 0
    while tried < 150:
        source = pattern(chance)
        try:
            written = whole_pattern(source)
        except PatternUnsupported:
            continue
        tried += 1
        grammar = BACKEND.compile(Constraint(kind="regex", source=written))
        for _ in range(12):
            text = "".join(chance.choice('abc1 é.-/"\nxA!') for _ in range(chance.randint(0, 5)))
            wanted = re.fullmatch(source, text, re.ASCII) is not None
            assert takes(grammar, text) == wanted, (source, written, text)


@pytest.mark.parametrize("kind", ["integer", "number"])
def test_bounds_of_numbers_hold_as_they_are_written(kind: str) -> None:
    chance = random.Random(9)
    names = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    for _ in range(120):
        schema: dict[str, Any] = {"type": kind}
        for name in names:
            if chance.random() < 0.4:
                whole = chance.choice((chance.randint(-15, 15), chance.randint(-1500, 1500)))
                schema[name] = whole if chance.random() < 0.6 else round(chance.uniform(-9, 9), 3)
        try:
            grammar = schema_grammar(BACKEND, gate_schema(schema, strict=True).text)
        except SchemaRefused as refused:
            assert "no value can satisfy" in str(refused)
            continue
        near = [schema[name] + step for name in names if name in schema for step in (-1, 0, 1)]
        texts = {repr(number) for number in near} | {repr(int(number)) for number in near}
        texts |= {walk(grammar, chance) or "0" for _ in range(4)}
        for text in texts:
            right = fault(schema, text) == ""
            taken = takes(grammar, text)
            assert taken <= right, (schema, text)
            if re.fullmatch(r"0|-?[1-9]\d*", text):
                assert taken == right, (schema, text)
