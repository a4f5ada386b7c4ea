"""Constraints in the engine: valid whatever drafts, and with plain rows in the same steps."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from antiphon_llm.engine.constraint_desk import SOURCE_BYTES, ConstraintDesk
from antiphon_llm.messages import Cancel, Constraint, EngineConfig, Shutdown
from antiphon_llm.speculation.ngram import NgramDrafter
from antiphon_llm.structured.backend import Grammar
from antiphon_llm.structured.grammars import Grammars
from antiphon_llm.structured.xgrammar_backend import XgrammarBackend

from bench.random_schemas import fault, longest_blank, random_schemas

from .conftest import END, VOCABULARY, Engine
from .drafters import Adversary, Coin, Oracle

PIECES = [
    *'{}[]",:-. ', *"0123456789", *"abcdefghijklmnopqrstuvwxyz",
    '":', '",', "true", "false", "null", '{"', "T", "Z", "A", "E", "\\", "@", "é", "ß",
    "re", "name", "1,",
]  # fmt: skip
TOKENS = [piece.encode() for piece in PIECES] + [b""] * (VOCABULARY - len(PIECES))
BLANKS = 3
SCHEMAS = random_schemas(11, 40)


class SlowBackend(XgrammarBackend):
    """Compiles when it is let."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__(TOKENS, width=VOCABULARY, end_ids=[END], whitespace=BLANKS)
        self._gate = gate

    def compile(self, constraint: Constraint) -> Grammar:
        assert self._gate.wait(30)
        return super().compile(constraint)


@pytest.fixture(scope="module")
def gate() -> Iterator[threading.Event]:
    made = threading.Event()
    made.set()
    yield made
    made.set()


@pytest.fixture(scope="module")
def grammars(gate: threading.Event) -> Iterator[Grammars]:
    made = Grammars(
        SlowBackend(gate),
        EngineConfig(model_path="", grammar_timeout_s=30.0),
        text_ids=frozenset(range(len(PIECES))),
        end_ids=[END],
    )
    yield made
    made.close()


def engine(grammars: Grammars, **settings: Any) -> Engine:
    values = {"context_limit": 200, "entries": 400, "max_rows": 8, "step_tokens": 64,
              "queue_limit": 200}  # fmt: skip
    made = Engine(**{**values, **settings})
    made.loop.intake.constraints = ConstraintDesk(grammars, limit=100)
    return made


def run(made: Engine) -> None:
    made.step()
    while made.loop.busy or made.loop.intake.compiling:
        made.step()


def regex(source: str) -> Constraint:
    return Constraint(kind="regex", source=source)


def text_of(tokens: list[int]) -> str:
    return b"".join(TOKENS[token] for token in tokens).decode()


def traffic(made: Engine) -> None:
    """Constrained and plain requests, greedy and drawn, of different lengths."""
    chance = random.Random(5)
    for number, (_, gated) in enumerate(SCHEMAS):
        constraint = Constraint(kind="json_schema", source=gated.text)
        drawn = {"temperature": 1.2, "seed": number} if number % 3 else {}
        prompt = [chance.randrange(60) for _ in range(chance.randrange(1, 12))]
        made.submit(f"s{number}", prompt, constraint=constraint, max_tokens=150, **drawn)
        if number % 2:
            made.submit(f"p{number}", prompt, max_tokens=chance.randrange(1, 60), **drawn)


@pytest.fixture(scope="module")
def plain(grammars: Grammars) -> Engine:
    made = engine(grammars)
    traffic(made)
    run(made)
    return made


def test_constrained_outputs_are_valid_beside_plain_ones(plain: Engine) -> None:
    ended = 0
    for number, (schema, _) in enumerate(SCHEMAS):
        finish, tokens = plain.finished[f"s{number}"], plain.outputs[f"s{number}"]
        text = text_of(tokens)
        assert longest_blank(text) <= 2 * BLANKS
        if finish.reason == "stop":
            ended += 1
            assert tokens[-1] == END
            assert fault(schema, text) == "", (schema, text)
        else:
            assert finish.reason in ("length", "context"), finish
    assert ended > 0.7 * len(SCHEMAS)
    reference = Engine(context_limit=200, entries=400, max_rows=8, step_tokens=64, queue_limit=200)
    traffic_without_constraints(reference)
    for name in reference.outputs:
        assert plain.outputs[name] == reference.outputs[name]


def traffic_without_constraints(made: Engine) -> None:
    chance = random.Random(5)
    for number in range(len(SCHEMAS)):
        drawn = {"temperature": 1.2, "seed": number} if number % 3 else {}
        prompt = [chance.randrange(60) for _ in range(chance.randrange(1, 12))]
        if number % 2:
            made.submit(f"p{number}", prompt, max_tokens=chance.randrange(1, 60), **drawn)
    made.run()


DRAFTERS = {
    "oracle": Oracle,
    "adversary": Adversary,
    "coin": Coin,
    "ngram": lambda answers: NgramDrafter(),
}


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_drafts_and_preemption_change_no_constrained_text(
    grammars: Grammars, plain: Engine, drafter: str, overlap: int
) -> None:
    made = engine(
        grammars, drafter=DRAFTERS[drafter](plain.outputs), draft_depth=4, overlap_depth=overlap,
        entries=64, prefix_cache=1,
    )  # fmt: skip
    traffic(made)
    run(made)
    assert made.outputs == plain.outputs
    assert {name: finish.reason for name, finish in made.finished.items()} == {
        name: finish.reason for name, finish in plain.finished.items()
    }
    assert made.scheduler.preemptions > 0
    assert "grammar: desync" not in grammars.counters()
    if drafter == "oracle":
        assert made.speculation.telemetry.accepted > 100


def test_each_choice_owns_its_place(grammars: Grammars) -> None:
    made = engine(grammars)
    for choice in range(4):
        made.submit(
            f"c{choice}",
            [1],
            choice=choice,
            temperature=1.0,
            constraint=regex("[a-j]{9}"),
            max_tokens=20,
        )
    run(made)
    texts = {text_of(made.outputs[f"c{choice}"]) for choice in range(4)}
    assert len(texts) == 4
    assert all(re.fullmatch("[a-j]{9}", text) for text in texts)


# Waiting for the compile


def test_others_run_while_a_constraint_compiles(grammars: Grammars, gate: threading.Event) -> None:
    made = engine(grammars)
    gate.clear()
    made.submit("bound", [1], constraint=regex("a{5}"), max_tokens=9)
    made.submit("plain", [1, 2], max_tokens=6)
    made.run()
    assert set(made.finished) == {"plain"}
    assert made.loop.intake.compiling == 1
    assert made.loop._gauges().waiting == 1
    gate.set()
    run(made)
    assert text_of(made.outputs["bound"]) == "aaaaa"


def test_cancels_deadlines_and_a_stop_reach_requests_that_compile(
    grammars: Grammars, gate: threading.Event
) -> None:
    made = engine(grammars)
    gate.clear()
    made.submit("cancelled", [1], constraint=regex("b{5}"))
    made.submit("late", [1], constraint=regex("b{6}"), deadline=time.time() - 1)
    made.submit("stopped", [1], constraint=regex("b{7}"))
    made.submit("stopped", [1], constraint=regex("b{7}"))
    made.step()
    made.send(Cancel("cancelled"))
    made.step()
    assert made.finished["cancelled"].reason == "cancelled"
    assert made.finished["late"].reason == "deadline"
    made.finished.clear()
    made.send(Shutdown())
    made.loop.run()
    made.collect()
    assert made.finished["stopped"].error_reason == "DRAINING"
    assert made.loop.intake.compiling == 0
    gate.set()


@pytest.mark.parametrize(
    ("constraint", "fields", "reason"),
    [
        (regex("(a"), {}, "INVALID_SCHEMA"),
        (Constraint(kind="ebnf", source="x" * (SOURCE_BYTES + 1)), {}, "INVALID_SCHEMA"),
        (regex("a"), {"ignore_eos": True}, "INVALID_VALUE"),
    ],
)
def test_what_cannot_be_served_is_the_end_of_that_request(
    grammars: Grammars, constraint: Constraint, fields: dict[str, Any], reason: str
) -> None:
    made = engine(grammars)
    made.submit("bad", [1], constraint=constraint, **fields)
    run(made)
    finish = made.finished["bad"]
    assert (finish.reason, finish.error_reason) == ("error", reason)
    assert "bad" not in made.outputs


def test_an_engine_without_a_vocabulary_says_so() -> None:
    made = Engine()
    made.submit("a", [1], constraint=regex("a"))
    made.run()
    assert made.finished["a"].error_reason == "UNSUPPORTED_OPTION"


def test_too_many_that_wait_are_refused(grammars: Grammars, gate: threading.Event) -> None:
    made = engine(grammars)
    made.loop.intake.constraints = ConstraintDesk(grammars, limit=1)
    gate.clear()
    made.submit("first", [1], constraint=regex("c{3}"))
    made.submit("second", [1], constraint=regex("c{4}"))
    made.step()
    assert made.finished["second"].error_reason == "QUEUE_FULL"
    gate.set()
    run(made)
    assert text_of(made.outputs["first"]) == "ccc"


def test_the_schemas_are_of_many_kinds() -> None:
    text = json.dumps([schema for schema, _ in SCHEMAS])
    for keyword in ("oneOf", "anyOf", "allOf", "$ref", "pattern", "format", "prefixItems", "enum"):
        assert f'"{keyword}"' in text, keyword
