"""Grammars over bytes: what each kind of constraint takes, and windows that leave no trace."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from antiphon_llm.messages import Constraint, Reasoning, Sampling
from antiphon_llm.sampler.processors import TokenRefused
from antiphon_llm.sampler.row import SamplerRow
from antiphon_llm.structured.backend import GrammarError, Matcher
from antiphon_llm.structured.processor import GrammarProcessor

from .structured_kit import CONTROL, END, WIDTH, byte_backend, ids_of, takes

BACKEND = byte_backend()
PAIR = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
PAIR |= {"additionalProperties": False}


def grammar(kind: str, source: str = "") -> Any:
    return BACKEND.compile(Constraint(kind=kind, source=source))


def ascii_ids(text: str) -> set[int]:
    return set(text.encode())


@pytest.mark.parametrize(
    ("kind", "source", "inside", "outside"),
    [
        ("json_schema", json.dumps(PAIR), ['{"a": 1}', '{ "a" : 12 }'], ["{}", '{"a": 1} ', "1"]),
        ("json_object", "", ["{}", '{"x": [1, {}]}'], ["[]", "1", '"x"', " {}"]),
        ("regex", "[ab]{2}c", ["abc", "bbc"], ["abcc", "ac"]),
        ("choice", '["yes", "no", "ye\\"s", "né"]', ["yes", "no", 'ye"s', "né"], ["ye", "yesno"]),
        ("choice", '["one"]', ["one"], ["on", "two"]),
        ("ebnf", 'root ::= "<" [a-z]+ ">"', ["<ab>"], ["<>", "<ab"]),
        (
            "structural_tag",
            '{"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}',
            ["x"],
            ["", "xx"],
        ),
    ],
)
def test_every_kind_takes_what_it_describes(
    kind: str, source: str, inside: list[str], outside: list[str]
) -> None:
    compiled = grammar(kind, source)
    assert compiled.nbytes > 0
    assert [text for text in inside if not takes(compiled, text)] == []
    assert [text for text in outside if takes(compiled, text)] == []


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json_schema", "{"),
        ("json_schema", '{"type": "no such"}'),
        ("regex", "("),
        ("ebnf", "root ::= missing"),
        ("ebnf", ""),
        ("structural_tag", "[]"),
        ("no such kind", ""),
    ],
)
def test_what_does_not_compile_says_why(kind: str, source: str) -> None:
    with pytest.raises(GrammarError) as caught:
        grammar(kind, source)
    assert str(caught.value)
    assert ".cc:" not in str(caught.value)


@pytest.mark.parametrize("bound", [0, 1, 16])
def test_white_space_is_bounded(bound: int) -> None:
    compiled = byte_backend(bound).compile(Constraint(kind="json_object"))
    assert takes(compiled, '{"a":1}')
    assert takes(compiled, '{"a":' + " " * bound + "1}")
    assert not takes(compiled, '{"a":' + " " * (bound + 1) + "1}")
    assert takes(compiled, '{"a":"' + " " * 99 + '"}')


def test_end_ids_are_allowed_where_the_grammar_may_end_and_padding_never() -> None:
    matcher = grammar("regex", "a+").matcher([END])
    assert ids_of(matcher) == ascii_ids("a")
    assert matcher.accept(ord("a"))
    assert ids_of(matcher) == {*ascii_ids("a"), END}
    assert not matcher.accept(WIDTH - 1)
    assert not matcher.accept(CONTROL)
    assert matcher.accept(END)
    assert matcher.ended
    matcher.rollback(1)
    assert not matcher.ended
    assert ids_of(matcher) == {*ascii_ids("a"), END}


def test_a_control_token_is_reached_by_its_id_alone() -> None:
    tag = {"type": "token", "token": CONTROL}
    form = {"type": "tag", "begin": tag, "content": {"type": "json_schema"}, "end": "!"}
    form["content"] |= {"json_schema": {"type": "string"}}
    source = json.dumps({"type": "structural_tag", "format": form})
    matcher = grammar("structural_tag", source).matcher([END])
    assert ids_of(matcher) == {CONTROL}
    assert matcher.accept(CONTROL) and matcher.accept(ord('"'))
    assert CONTROL not in ids_of(matcher)


# Windows


SOURCES = [
    Constraint(kind="json_schema", source=json.dumps(PAIR)),
    Constraint(kind="json_object"),
    Constraint(kind="regex", source="(ab|a)c{1,3}d*"),
    Constraint(kind="choice", source='["aa", "ab", "b"]'),
]


def row(**settings: Any) -> SamplerRow:
    return SamplerRow(
        Sampling(**settings), choice=0, prompt_ids=[1], end_ids=[END], vocabulary=WIDTH
    )


def bound(
    made: SamplerRow, constraint: Constraint, desyncs: list[int] | None = None
) -> GrammarProcessor:
    processor = GrammarProcessor(
        BACKEND.compile(constraint).matcher([END]),
        end_ids=[END],
        thinking=made.thinking,
        stopping=lambda: made.stopper.active,
        on_desync=lambda: (desyncs if desyncs is not None else []).append(1),
    )
    made.add(processor)
    return processor


def matcher_of(processor: GrammarProcessor) -> Matcher:
    return processor._matcher


def allowed(mask: np.ndarray | None, place: int) -> set[int]:
    assert mask is not None
    bits = np.unpackbits(mask[place].astype("<u4").view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist()) & set(range(WIDTH))


@pytest.mark.parametrize("constraint", SOURCES, ids=lambda item: item.kind)
def test_a_window_rules_each_position_by_the_drafts_before_it_and_leaves_no_trace(
    constraint: Constraint,
) -> None:
    chance = random.Random(8)
    for _ in range(40):
        made = row()
        processor = bound(made, constraint)
        reference = BACKEND.compile(constraint).matcher([END])
        for _ in range(30):
            if reference.ended:
                break
            drafts = _drafts(reference, chance, depth=4)
            before = ids_of(matcher_of(processor))
            window = made.window(drafts)
            assert ids_of(matcher_of(processor)) == before
            taken = 0
            for place in range(1 + len(drafts)):
                if reference.ended:
                    break
                assert allowed(window.mask, place) == ids_of(reference), (drafts, place)
                if place == len(drafts) or drafts[place] < 0:
                    break
                if not reference.accept(drafts[place]):
                    break
                taken += 1
            reference.rollback(taken)
            token = _next(reference, chance, wrong=0.0)
            assert reference.accept(token)
            made.advance(token)


def _next(matcher: Matcher, chance: random.Random, wrong: float) -> int:
    if chance.random() < wrong:
        return chance.randrange(WIDTH)
    ids = sorted(ids_of(matcher))
    return END if END in ids and chance.random() < 0.5 else chance.choice(ids)


def _drafts(matcher: Matcher, chance: random.Random, depth: int) -> list[int]:
    """Mostly legal, some of them followed by what cannot be reached; short ones are padded."""
    drafts: list[int] = []
    taken = 0
    for _ in range(chance.randrange(depth + 1)):
        if matcher.ended:
            drafts.append(chance.randrange(WIDTH))
            continue
        drafts.append(_next(matcher, chance, wrong=0.15))
        taken += matcher.accept(drafts[-1])
    matcher.rollback(taken)
    return drafts + [-1] * (depth - len(drafts))


def test_rewinding_goes_back_over_an_end() -> None:
    made = row()
    processor = bound(made, Constraint(kind="regex", source="ab*"))
    for token in (ord("a"), ord("b"), END):
        made.advance(token)
    assert matcher_of(processor).ended
    # Tokens that were in flight behind the end are drawn and dropped.
    made.advance(77)
    made.rewind(2)
    assert ids_of(matcher_of(processor)) == {ord("b"), END}
    made.rewind(0)
    assert ids_of(matcher_of(processor)) == {ord("a")}


def test_a_token_outside_of_the_grammar_ends_the_request_and_is_counted() -> None:
    desyncs: list[int] = []
    made = row()
    bound(made, Constraint(kind="regex", source="ab*"), desyncs)
    with pytest.raises(TokenRefused) as caught:
        made.advance(ord("b"))
    assert caught.value.reason == "GRAMMAR_DESYNC"
    assert desyncs == [1]


def test_an_ordered_stop_ends_the_output_anywhere() -> None:
    made = row()
    bound(made, Constraint(kind="regex", source="ab*"))
    made.stopper.arm(END)
    assert made.window([]).forced[0] == END
    made.advance(END)


# Reasoning

OPEN, CLOSE, CALL = 1, 2, 3


def thinking_row(*, inside: bool, openers: tuple[int, ...] = ()) -> SamplerRow:
    marks = Reasoning(
        start_ids=[OPEN], end_ids=[CLOSE], open=inside, budget=-1, opener_ids=list(openers)
    )
    return row(reasoning=marks)


def test_the_grammar_is_armed_behind_the_closing_marker_inside_a_window_too() -> None:
    made = thinking_row(inside=True)
    processor = bound(made, Constraint(kind="regex", source="ab*"))
    window = made.window([9, CLOSE, ord("a"), ord("b")])
    everything = set(range(WIDTH))
    # The block is free, but for the end: the answer is still to come.
    assert allowed(window.mask, 0) == allowed(window.mask, 1) == everything - {END}
    assert allowed(window.mask, 2) == {ord("a")}
    assert allowed(window.mask, 3) == allowed(window.mask, 4) == {ord("b"), END}
    for token in (9, CLOSE, ord("a")):
        made.advance(token)
    assert allowed(made.window([]).mask, 0) == {ord("b"), END}
    made.rewind(1)
    assert ids_of(matcher_of(processor)) == {ord("a")}
    assert allowed(made.window([]).mask, 0) == everything - {END}


def test_before_the_first_token_a_block_may_be_opened() -> None:
    made = thinking_row(inside=False)
    bound(made, Constraint(kind="regex", source="ab*"))
    window = made.window([OPEN, 50, CLOSE])
    assert allowed(window.mask, 0) == {ord("a"), OPEN}
    assert allowed(window.mask, 2) == set(range(WIDTH)) - {END}
    assert allowed(window.mask, 3) == {ord("a")}
    made.advance(ord("a"))
    assert allowed(made.window([]).mask, 0) == {ord("b"), END}


def test_an_opener_that_is_no_part_of_the_answer_may_not_close_the_block() -> None:
    barred = thinking_row(inside=True, openers=(CALL,))
    bound(barred, Constraint(kind="regex", source="ab*"))
    assert CALL not in allowed(barred.window([]).mask, 0)
    taken = thinking_row(inside=True, openers=(ord("a"),))
    processor = bound(taken, Constraint(kind="regex", source="ab*"))
    window = taken.window([ord("a")])
    assert ord("a") in allowed(window.mask, 0)
    assert allowed(window.mask, 1) == {ord("b"), END}
    taken.advance(ord("a"))
    assert ids_of(matcher_of(processor)) == {ord("b"), END}
