"""Structural tags: whatever a format's grammar lets through, its own parser reads as calls whose
arguments match the schema."""

from __future__ import annotations

import json
import random
from functools import lru_cache
from typing import Any

import jsonschema
import numpy as np
import pytest
import xgrammar
from antiphon_llm.front.parsing import tags
from antiphon_llm.front.parsing.pieces import (
    Arguments,
    CallClosed,
    CallOpened,
    Content,
    Piece,
    merged,
)
from antiphon_llm.front.parsing.registry import CALL_FORMATS, choose
from antiphon_llm.front.parsing.tags import Tag
from antiphon_llm.front.tools import Tool, ToolOptions, offered_tools
from parsing_corpus import TOOLS

FAMILIES = list(CALL_FORMATS)
WALKS = 25
FRAGMENTS = sorted(
    {marker for form in CALL_FORMATS.values() for marker in form.markers}
    | {"</parameter>", "</function>", "<function=", "<parameter=", "```tool_code\n", "\n```", '"'}
    | {"<|end|>", "<|channel|>final<|message|>"}
)
"""Tokens beside the single bytes, so that a random walk finds its way out of free text."""
VOCABULARY = [*(bytes([byte]) for byte in range(256)), *(text.encode() for text in FRAGMENTS)]
END = len(VOCABULARY)
BARE = {"llama_json": '{"name": "', "bracket_array": '[{"name": "', "llama_list": "[now("}
"""How a call begins that no marker announces: chance alone would not find it."""


@lru_cache
def compiler() -> xgrammar.GrammarCompiler:
    info = xgrammar.TokenizerInfo(
        [*VOCABULARY, b"<eos>"],
        vocab_type=xgrammar.VocabType.RAW,
        vocab_size=END + 1,
        stop_token_ids=[END],
    )
    return xgrammar.GrammarCompiler(info)


def walk(tag: Tag, rng: random.Random, start: str = "", *, plain: bool = False) -> str:
    """A random output that the tag allows.

    Args:
        start: how it begins.
        plain: ASCII where there is a choice: bytes that are no character have no length.
    """
    matcher = xgrammar.GrammarMatcher(compiler().compile_structural_tag(tags.source(tag)))
    mask = xgrammar.allocate_token_bitmask(1, END + 1)
    assert matcher.accept_string(start)
    out = start.encode()
    for _ in range(4000):
        matcher.fill_next_token_bitmask(mask)
        bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")[: END + 1]
        allowed = np.flatnonzero(bits).tolist()
        assert allowed, f"a dead end behind {out!r}"
        if plain:
            allowed = [t for t in allowed if not 127 <= t < 256] or allowed
        if allowed[-1] == END and (allowed == [END] or len(out) > 300 or rng.random() < 0.2):
            return out.decode("utf-8", "replace")
        marks = [t for t in allowed if 256 <= t < END or (t < 256 and t in b'"}]),')]
        picks = marks if marks and rng.random() < 0.6 else [t for t in allowed if t != END]
        token = rng.choice(picks)
        assert matcher.accept_token(token)
        out += VOCABULARY[token]
    raise AssertionError(f"no end behind {out[-200:]!r}")


def accepts(tag: Tag, text: str) -> bool:
    """Whether the tag allows exactly this text."""
    matcher = xgrammar.GrammarMatcher(compiler().compile_structural_tag(tags.source(tag)))
    return matcher.accept_string(text) and matcher.accept_token(END)


def test_text_that_does_not_begin_like_a_call() -> None:
    tag = tags.text_unless(['{"name"', '{ "name"', "[now("])
    for text in (
        "",
        " ",
        "Hi",
        "{",
        '{"',
        '{"nam',
        '{"nameless": 1}',
        "[now]",
        "x [now()]",
        " {1}",
    ):
        assert accepts(tag, text), text
    for text in ('{"name"', '{"name": 1}', ' \n{ "name": "f"}', "[now()]"):
        assert not accepts(tag, text), text


def parsed(family: str, text: str) -> tuple[list[tuple[str, str]], list[Piece]]:
    """Closed calls and everything."""
    parser = choose("", tool_parser=family).parser(TOOLS)
    pieces = merged([*parser.push(text), *parser.finish()])
    calls, name, arguments = [], "", ""
    for piece in pieces:
        if isinstance(piece, CallOpened):
            name, arguments = piece.name, ""
        elif isinstance(piece, Arguments):
            arguments += piece.text
        elif isinstance(piece, CallClosed):
            calls.append((name, arguments))
    assert len(calls) == sum(isinstance(piece, CallOpened) for piece in pieces)
    return calls, pieces


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_only_calls_where_calls_are_required(family: str, single: bool) -> None:
    tag = CALL_FORMATS[family].some(list(TOOLS.values()), single=single, whitespace=4)
    rng = random.Random(f"{family}{single}")
    counts = set()
    for _ in range(WALKS):
        text = walk(tag, rng)
        calls, pieces = parsed(family, text)
        assert calls, text
        assert not any(isinstance(piece, Content) for piece in pieces), text
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), dict(TOOLS[name].schema))
        counts.add(len(calls))
    assert max(counts) == 1 or not single
    assert max(counts) > 1 or single or family == "harmony"


@pytest.mark.parametrize("family", FAMILIES)
def test_free_text_and_valid_calls_where_both_may_stand(family: str) -> None:
    form = CALL_FORMATS[family]
    seen = {"calls": 0, "text": 0}
    for single in (False, True):
        tag = form.free(list(TOOLS.values()), single=single, whitespace=4)
        rng = random.Random(f"free{family}{single}")
        for _ in range(WALKS):
            text = walk(tag, rng, rng.choice(("", BARE.get(family, ""))))
            calls, pieces = parsed(family, text)
            assert len(calls) <= 1 or not single
            for name, arguments in calls:
                jsonschema.validate(json.loads(arguments), dict(TOOLS[name].schema))
            seen["calls"] += len(calls)
            seen["text"] += any(isinstance(piece, Content) for piece in pieces)
    assert seen["calls"] and seen["text"]


@pytest.mark.parametrize("family", FAMILIES)
def test_one_named_tool(family: str) -> None:
    tag = CALL_FORMATS[family].some([TOOLS["now"]], single=True, whitespace=4)
    calls, _ = parsed(family, walk(tag, random.Random(0)))
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [("now", {})]


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """Of one argument."""
    simple = ("string", "integer", "boolean", "enum")
    kind = rng.choice((*simple, *COMPOSED) if depth < 2 else simple)
    match kind:
        case "enum":
            return {"enum": rng.sample(["a", "b c", "true", "5", 5, True, None, 1.5], 3)}
        case "array":
            return {"type": "array", "items": random_schema(rng, depth + 1), "maxItems": 3}
        case "object":
            return random_object(rng, depth + 1)
        case "anyOf":
            return {"anyOf": [random_schema(rng, depth + 1) for _ in range(2)]}
        case "ref":
            return {"$ref": "#/$defs/pair"}
        case "pattern":
            return {"type": "string", "pattern": "^[a-z]{2,4}$"}
        case "length":
            return {"type": "string", "minLength": 1, "maxLength": 5}
        case "nullable":
            return {"type": ["string", "null"]}
    return {"type": kind}


COMPOSED = ("number", "null", "array", "object", "anyOf", "ref", "pattern", "length", "nullable")


def random_object(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    names = rng.sample(["city", "days", "x", "note", "tag_s"], rng.randrange(4))
    return {
        "type": "object",
        "properties": {name: random_schema(rng, depth) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
    }


PAIR = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}


@pytest.mark.parametrize("family", FAMILIES)
def test_arguments_match_random_schemas(family: str) -> None:
    for seed in range(25):
        rng = random.Random(seed)
        schema = {**random_object(rng), "$defs": {"pair": PAIR}}
        tool = Tool("lookup", parameters_json=json.dumps(schema), strict=True)
        (spec,) = offered_tools(ToolOptions([tool], "required")).specs
        tag = CALL_FORMATS[family].some([spec], single=True, whitespace=4)
        text = walk(tag, rng, plain=True)
        parser = choose("", tool_parser=family).parser({"lookup": spec})
        opened, *pieces, closed = merged([*parser.push(text), *parser.finish()])
        assert isinstance(opened, CallOpened) and isinstance(closed, CallClosed), text
        (arguments,) = pieces
        assert isinstance(arguments, Arguments)
        jsonschema.validate(json.loads(arguments.text), schema)
