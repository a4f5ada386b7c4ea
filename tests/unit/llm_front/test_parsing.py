"""Output parsers: what each family means, however the text is cut, in linear time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable

import pytest
from antiphon_llm.front.parsing.base import ToolSpec, written
from antiphon_llm.front.parsing.pieces import (
    Arguments,
    CallClosed,
    CallOpened,
    Content,
    Piece,
    Thought,
    merged,
)
from antiphon_llm.front.parsing.reader import NAME_LIMIT, Reader
from antiphon_llm.front.parsing.registry import CALL_FORMATS, choose
from parsing_corpus import TOOLS, malformed, sample

FAMILIES = list(CALL_FORMATS)
RECORDED = 200


def parse(
    family: str, chunks: Iterable[str], *, call_limit: int = 10_000, cut: bool = False
) -> list[Piece]:
    parser = choose("", tool_parser=family).parser(TOOLS, reader=Reader(call_limit=call_limit))
    pieces = [piece for chunk in chunks for piece in parser.push(chunk)]
    return merged([*pieces, *parser.finish(cut=cut)])


def chunked(text: str, rng: random.Random) -> list[str]:
    places = sorted(rng.choices(range(len(text) + 1), k=rng.randrange(12)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def calls_of(pieces: list[Piece]) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    name, text = "", ""
    for piece in pieces:
        if isinstance(piece, CallOpened):
            name, text = piece.name, ""
        elif isinstance(piece, Arguments):
            text += piece.text
        elif isinstance(piece, CallClosed):
            found.append((name, json.loads(text)))
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_mean_what_was_written(family: str) -> None:
    for seed in range(RECORDED):
        known = sample(family, seed)
        pieces = parse(family, [known.text])
        assert calls_of(pieces) == known.calls, known.text
        content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
        assert content == known.content, known.text


@pytest.mark.parametrize("family", FAMILIES)
def test_any_chunking_gives_the_same_pieces(family: str) -> None:
    rng = random.Random(family)
    for seed in range(RECORDED):
        for text in (sample(family, seed).text, malformed(family, seed)):
            whole = parse(family, [text])
            assert parse(family, text) == whole, text
            for _ in range(2):
                chunks = chunked(text, rng)
                assert parse(family, chunks) == whole, chunks


@pytest.mark.parametrize("family", FAMILIES)
def test_every_cut_in_two(family: str) -> None:
    for seed in range(3):
        text = malformed(family, seed)
        whole = parse(family, [text])
        for place in range(len(text) + 1):
            assert parse(family, [text[:place], text[place:]]) == whole, (text, place)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_ends_at_the_limit(family: str) -> None:
    text = sample(family, 3).text
    long = text.replace("Oslo", "Oslo" * 500) + sample(family, 5).text
    for limit in (1, 7, 40, 150):
        whole = parse(family, [long], call_limit=limit)
        assert parse(family, long, call_limit=limit) == whole
        sizes = [len(piece.text) for piece in whole if isinstance(piece, Arguments)]
        assert all(size <= 2 * limit + 8 for size in sizes)


@pytest.mark.parametrize("family", FAMILIES)
def test_text_without_calls_passes_through(family: str) -> None:
    for text in (
        "",
        "Hello.\n",
        "\n\n  indented",
        "a < b [c] {d} `e`",
        '{"name": "Bob"}',
        "[1, 2]",
    ):
        if family == "harmony":
            text = f"<|channel|>final<|message|>{text}"
        pieces = parse(family, text)
        content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
        assert content == text.removeprefix("<|channel|>final<|message|>")
        assert len(pieces) <= 1


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_held_back_is_bounded(family: str) -> None:
    """A push looks at what is held back and what is new: the whole takes linear time."""
    known = next(s for s in (sample(family, seed) for seed in range(99)) if s.calls)
    cut = known.text.find("Oslo") if "Oslo" in known.text else len(known.text) // 2
    for filler in ("x", " ", "<", "{", '"', "\\", "(", "<tool_call>", "[TOOL_CALLS]a"):
        reader = Reader(call_limit=5000)
        parser = choose("", tool_parser=family).parser(TOOLS, reader=reader)
        parser.push(known.text[:cut])
        for character in filler * (8000 // len(filler)):
            parser.push(character)
            assert reader.held <= NAME_LIMIT + 64, filler


THINK = choose("<think>")


@pytest.mark.parametrize(
    ("opening", "text", "expected"),
    [
        ("open", "I see.</think>\n\nHi", [Thought("I see."), Content("Hi")]),
        ("open", "I see", [Thought("I see")]),
        ("open", "a </thin b", [Thought("a </thin b")]),
        ("possible", "<think>\nI see.</think>Hi", [Thought("I see."), Content("Hi")]),
        ("possible", "\n Hi <think>", [Content("\n Hi <think>")]),
        ("closed", "<think>Hi", [Content("<think>Hi")]),
    ],
)
def test_think_tags(opening: str, text: str, expected: list[Piece]) -> None:
    for chunks in ([text], list(text)):
        parser = THINK.parser({}, opening)  # type: ignore[arg-type]
        pieces = [piece for chunk in chunks for piece in parser.push(chunk)]
        assert merged([*pieces, *parser.finish()]) == expected


def test_a_call_behind_a_trace() -> None:
    text = '<think>Need it.</think>\n\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    parser = THINK.parser(TOOLS, "possible")
    states, pieces = [], []
    for character in text:
        pieces += parser.push(character)
        states.append(parser.state)
    assert merged([*pieces, *parser.finish()]) == [
        Thought("Need it."), CallOpened("now"), Arguments("{}"), CallClosed(),
    ]  # fmt: skip
    assert list(dict.fromkeys(states)) == ["content", "reasoning", "call"]


def test_a_call_may_end_a_trace() -> None:
    text = 'Need it.<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for chunks in ([text], list(text)):
        parser = THINK.parser(TOOLS, "open", trace_openers=("<tool_call>",))
        pieces = [piece for chunk in chunks for piece in parser.push(chunk)]
        assert merged([*pieces, *parser.finish()]) == [
            Thought("Need it."), CallOpened("now"), Arguments("{}"), CallClosed(),
        ]  # fmt: skip
    parser = THINK.parser(TOOLS, "open")
    assert merged([*parser.push(text), *parser.finish()]) == [Thought(text)]


def test_harmony_channels() -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>I look.<|end|><|start|>assistant to=functions.now<|channel|>commentary json"
        '<|message|>{"a": 1}'
    )
    assert parse("harmony", text) == [
        Thought("Hm."), Content("I look."), CallOpened("now"), Arguments('{"a": 1}'), CallClosed(),
    ]  # fmt: skip


def test_without_tools_nothing_is_a_call() -> None:
    for family, form in CALL_FORMATS.items():
        text = next(s.text for s in (sample(family, seed) for seed in range(99)) if s.calls)
        parser = choose("", tool_parser=family).parser({})
        pieces = merged([*parser.push(text), *parser.finish()])
        assert {type(piece) for piece in pieces} == {Content}, form


def test_arguments_stream_as_they_come() -> None:
    parser = THINK.parser(TOOLS)
    parser.push('<tool_call>\n{"name": "search", "arguments": {"query": "a')
    assert parser.push("bc") == [Arguments("bc")]
    xml = choose("", tool_parser="function_xml").parser(TOOLS)
    xml.push("<tool_call>\n<function=get_weather>\n<parameter=city>\nOs")
    assert xml.push("lo\n") == [Arguments("lo")]


def test_a_cut_call_is_not_closed() -> None:
    pieces = parse("json_tags", '<tool_call>{"name": "now", "arguments": {"a": [1')
    assert pieces == [CallOpened("now"), Arguments('{"a": [1')]


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "harmony"])
def test_no_part_of_a_call_that_is_cut_is_content(family: str) -> None:
    """Wherever the token limit falls behind the first call's name, and behind its marker."""
    form = CALL_FORMATS[family]
    for seed in range(12):
        known = sample(family, seed)
        if not known.calls or known.content:
            continue
        text = known.text.lstrip()
        openers = [marker for marker in form.opening_texts if text.startswith(marker)]
        begin = len(openers[0]) if openers else len(text)
        for place in range(len(text) + 1):
            pieces = parse(family, [text[:place]], cut=True)
            called = any(isinstance(piece, CallOpened) for piece in pieces)
            if called or place >= begin:
                assert not any(isinstance(piece, Content) for piece in pieces), text[:place]


def test_a_cut_header_is_no_content() -> None:
    """Of harmony, whose markers are single tokens; a text without a header is content."""
    header = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>"
    for text in ("<|channel|>", header[:25], header[:-11]):
        assert parse("harmony", text, cut=True) == []
    assert parse("harmony", "Hello", cut=True) == [Content("Hello")]


def test_a_list_between_the_tags() -> None:
    one = '{"name": "now", "arguments": {}}'
    for inside in (f"[{one}, {one}]", f"\n{one}\n{one}"):
        text = f"<tool_call>{inside}</tool_call>"
        assert calls_of(parse("json_tags", text)) == [("now", {})] * 2


def test_a_call_is_written_as_it_is_read() -> None:
    arguments = {"city": 'Os"lo', "more": {"a": [1, None, True]}}
    schema = {"properties": {"city": {"type": "string"}, "more": {"type": "object"}}}
    offered = {"f": ToolSpec("f", schema, schema)}
    for family, form in CALL_FORMATS.items():
        parser = choose("", tool_parser=family).parser(offered)
        pieces = [*parser.push(written(form, "f", arguments)), *parser.finish()]
        assert calls_of(pieces) == [("f", arguments)]


def test_json_inside_a_string_is_unpacked() -> None:
    pieces = parse(
        "json_tags", '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>'
    )
    assert calls_of(pieces) == [("now", {"a": 1})]


def test_bare_calls_need_an_offered_tool() -> None:
    for family, text in (
        ("llama_json", '{"name": "%s", "parameters": {}}; {"name": "now", "parameters": {}}'),
        ("bracket_array", '[{"name": "%s", "arguments": {}}, {"name": "now", "arguments": {}}]'),
        ("llama_list", "[%s(), now()]"),
    ):
        assert calls_of(parse(family, text % "now")) == [("now", {}), ("now", {})]
        other = text % "other"
        assert parse(family, other) == [Content(other)]


@pytest.mark.parametrize(
    ("template", "calls", "reasoning"),
    [
        ("{{ tools }} <tool_call> <think>", "json_tags", "think"),
        ("<tool_call>\n<function=name>", "function_xml", None),
        ("<tool_call> <arg_key> </think>", "argument_xml", "think"),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", "mistral_list", None),
        ("[TOOL_CALLS] [ARGS] [THINK]", "mistral_named", "mistral_think"),
        ("<|start|> <|channel|>analysis<|message|>", "harmony", "harmony"),
        ("<｜tool▁calls▁begin｜> ```json", "deepseek_fenced", None),
        ("<｜tool▁calls▁begin｜> </think>", "deepseek", "think"),
        ("<|python_tag|>", "llama_json", None),
        ("<start_function_call>", "function_gemma", None),
        ("<|tool_call>call: <|channel>thought\n", "gemma4", "gemma_thought"),
        ("nothing", "json_tags", None),
    ],
)
def test_the_template_tells_the_format(template: str, calls: str, reasoning: str | None) -> None:
    found = choose(template)
    assert found.calls.name == calls
    assert (found.reasoning.name if found.reasoning else None) == reasoning
    assert found.known == (template != "nothing")
