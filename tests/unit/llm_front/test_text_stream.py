"""Detokenizer and stop strings: any split equals the whole, nothing is taken back."""

from __future__ import annotations

import re

import pytest
from antiphon_llm.front.choice import Choice
from antiphon_llm.front.detokenizer import Detokenizer
from antiphon_llm.front.requests import OutputOptions, StopOptions
from antiphon_llm.front.stops import StopScanner
from antiphon_llm.front.tokenizer import Tokenizer
from antiphon_llm.messages import TopLogprobs
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=150, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=40))
def test_deltas_equal_the_whole_for_any_ids(smollm: Tokenizer, ids: list[int]) -> None:
    detokenizer = Detokenizer(smollm, from_start=True)
    streamed = "".join(detokenizer.push(index) for index in ids) + detokenizer.finish()
    assert streamed == smollm.decode(ids)


@settings(max_examples=150, deadline=None)
@given(ids=st.lists(st.integers(0, 272), max_size=40))
def test_deltas_equal_the_whole_with_bytes_and_prefix_space(
    llama_like: Tokenizer, ids: list[int]
) -> None:
    detokenizer = Detokenizer(llama_like, from_start=True)
    assert detokenizer.push_all(ids) + detokenizer.finish() == llama_like.decode(ids)


def test_a_continuation_keeps_its_first_space(llama_like: Tokenizer) -> None:
    ids = llama_like.encode("ab", add_special_tokens=False)
    assert Detokenizer(llama_like).push_all(ids) == " ab"


def test_no_part_of_a_character_is_given_out(smollm: Tokenizer) -> None:
    detokenizer = Detokenizer(smollm)
    ids = smollm.encode("a🎉b", add_special_tokens=False)
    deltas = [detokenizer.push(index) for index in ids]
    assert "".join(deltas) == "a🎉b"
    assert "\ufffd" not in "".join(deltas)


def _reference(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Earliest, then longest, in the whole text."""
    best: tuple[int, int, str] | None = None
    for stop in stops:
        place = text.find(stop)
        if place >= 0 and (best is None or (place, -len(stop)) < best[:2]):
            best = (place, -len(stop), stop)
    if best is None:
        return text, None
    return text[: best[0] + (len(best[2]) if include else 0)], best[2]


@settings(max_examples=400, deadline=None)
@given(
    text=st.text(alphabet="abc", max_size=30),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=8),
    include=st.booleans(),
)
def test_any_chunking_finds_the_earliest_longest_stop(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    scanner = StopScanner(stops, include_stop=include)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    shown = "".join(scanner.push(text[places[i] : places[i + 1]]) for i in range(len(places) - 1))
    shown += scanner.finish()
    assert (shown, scanner.matched) == _reference(text, stops, include)


@settings(max_examples=100, deadline=None)
@given(
    text=st.text(alphabet="ab\n", max_size=40),
    stops=st.lists(st.sampled_from(["a\n", "\n\nb", "bab"]), max_size=3),
)
def test_only_possible_beginnings_are_held(text: str, stops: list[str]) -> None:
    scanner = StopScanner(stops)
    shown = ""
    for place, character in enumerate(text):
        shown += scanner.push(character)
        if scanner.matched is not None:
            return
        held = text[len(shown) : place + 1]
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_long_output_without_match_stays_linear() -> None:
    scanner = StopScanner(["x" * 200 + "y"])
    shown = "".join(scanner.push("x") for _ in range(20_000)) + scanner.finish()
    assert shown == "x" * 20_000


def _choice(smollm: Tokenizer, *stops: str, **output: object) -> Choice:
    return Choice(0, smollm, StopOptions(strings=stops), OutputOptions(**output))  # type: ignore[arg-type]


def test_a_stop_string_over_several_tokens_ends_the_choice(smollm: Tokenizer) -> None:
    choice = _choice(smollm, "fox jumps")
    ended = [choice.push(index, 0.0, None) for index in smollm.encode("The quick fox jumps over")]
    assert ended.index(True) == 3
    choice.finish("stop")
    delta = choice.take()
    assert delta is not None
    assert delta.text == "The quick "
    assert choice.stop_string == "fox jumps"


def test_the_end_token_is_counted_but_not_shown(smollm: Tokenizer) -> None:
    choice = _choice(smollm, token_ids=True)
    for index in smollm.encode("Hi\n"):
        choice.push(index, 0.0, None)
    choice.count_stop_token(198)
    choice.finish("stop")
    delta = choice.take()
    assert delta is not None
    assert (delta.text, len(delta.token_ids), choice.output_tokens) == ("Hi\n", 2, 3)
    assert choice.take() is None


def test_a_slow_reader_gets_one_larger_delta(smollm: Tokenizer) -> None:
    choice = _choice(smollm)
    ids = smollm.encode("one two three four")
    for index in ids:
        choice.push(index, 0.0, None)
    delta = choice.take()
    assert delta is not None
    assert (delta.text, delta.token_count) == ("one two three four", len(ids))


def test_logprobs_carry_exact_bytes_of_partial_characters(smollm: Tokenizer) -> None:
    choice = _choice(smollm, logprobs=2)
    ids = smollm.encode("🎉", add_special_tokens=False)
    for index in ids:
        choice.push(index, -0.5, TopLogprobs([index, 5], [-0.5, -1.5]))
    delta = choice.take()
    assert delta is not None
    assert b"".join(item.token for item in delta.logprobs) == "🎉".encode()
    assert [other.token_id for other in delta.logprobs[0].alternatives] == [ids[0], 5]


def test_output_that_ends_inside_a_character_shows_a_replacement(smollm: Tokenizer) -> None:
    choice = _choice(smollm)
    choice.push(smollm.encode("🎉", add_special_tokens=False)[0], 0.0, None)
    assert choice.take() is None
    choice.finish("length")
    delta = choice.take()
    assert delta is not None
    assert re.fullmatch("\ufffd+", delta.text)


@pytest.mark.parametrize("include", [False, True])
def test_a_pending_longer_stop_is_decided_at_the_end(smollm: Tokenizer, include: bool) -> None:
    choice = Choice(
        0, smollm, StopOptions(strings=("Hi", "Hi there"), include_stop=include), OutputOptions()
    )
    for index in smollm.encode("Hi"):
        assert not choice.push(index, 0.0, None)
    choice.finish("length")
    delta = choice.take()
    assert (delta.text if delta else "") == ("Hi" if include else "")
    assert (choice.reason, choice.stop_string) == ("stop", "Hi")
