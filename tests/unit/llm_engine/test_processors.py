"""Processors: which ids each rules out at every position of a window, and how they move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from antiphon_llm.messages import Reasoning, Sampling
from antiphon_llm.sampler.processors import REGISTRY, place_of
from antiphon_llm.sampler.row import SamplerRow
from antiphon_llm.sampler.window import Window, mask_words, words_of
from hypothesis import given, settings
from hypothesis import strategies as st

VOCABULARY = 70
END = 3
START, STOP, TOOL = 60, 61, 62


def row(
    prompt: Sequence[int] = (1, 2), end_ids: Sequence[int] = (END,),
    unasked: Sequence[int] = (), **fields: Any,
) -> SamplerRow:  # fmt: skip
    return SamplerRow(
        Sampling(**fields), choice=0, prompt_ids=prompt, end_ids=end_ids,
        vocabulary=VOCABULARY, unasked_ids=unasked,
    )  # fmt: skip


def allowed(window: Window, place: int) -> set[int]:
    if window.forced[place] >= 0:
        return {int(window.forced[place])}
    barred = window.barred(place)
    ids = np.arange(VOCABULARY) if barred is None else np.flatnonzero(~barred)
    return set(ids.tolist())


def barred(window: Window, place: int) -> set[int]:
    return set(range(VOCABULARY)) - allowed(window, place)


def reasoning(**fields: Any) -> Reasoning:
    return Reasoning(**{"start_ids": [START], "end_ids": [STOP], "open": True, **fields})


class TestWindow:
    def test_bits_lie_at_their_ids(self) -> None:
        words = words_of([0, 31, 32, 69], VOCABULARY)
        assert words.dtype == np.uint32 and len(words) == mask_words(VOCABULARY) == 3
        assert words.tolist() == [0x80000001, 1, 1 << 5]

    def test_it_stays_free_until_something_is_ruled(self) -> None:
        window = Window(3, VOCABULARY)
        assert window.free and window.mask is None
        window.bar(1, [5, 40])
        assert not window.free
        assert [barred(window, place) for place in range(3)] == [set(), {5, 40}, set()]
        window.keep(1, words_of([4, 5, 6], VOCABULARY))
        assert allowed(window, 1) == {4, 6}
        window.force(1, 5)
        assert allowed(window, 1) == {5}


class TestTokenIds:
    def test_allowed_and_banned_hold_at_every_position(self) -> None:
        window = row(allowed_token_ids=[4, 5, 69], banned_token_ids=[5]).window((4, 69))
        assert [allowed(window, place) for place in range(3)] == [{4, 69}] * 3

    def test_a_modality_that_was_not_asked_for_is_barred(self) -> None:
        assert barred(row(unasked=[50, 51], speech=False).window(()), 0) == {50, 51}


class TestMinTokens:
    def test_ends_are_barred_while_outputs_and_position_are_short(self) -> None:
        sampler = row(min_tokens=3, end_ids=[END, 9])
        sampler.advance(5)
        window = sampler.window((6, 7, 8))
        assert [barred(window, place) for place in range(4)] == [{END, 9}, {END, 9}, set(), set()]
        sampler.advance(6)
        sampler.advance(7)
        assert not sampler.constrained
        sampler.rewind(2)
        assert barred(sampler.window(()), 0) == {END, 9}


def repeated(tokens: Sequence[int], size: int, span: int) -> set[int]:
    """Ids that would complete a sequence which the searched tokens contain, by definition."""
    searched = list(tokens)[-span:] if span else list(tokens)
    grams = {tuple(searched[i : i + size]) for i in range(len(searched) - size + 1)}
    tail = tuple(tokens[len(tokens) - size + 1 :])
    return {gram[-1] for gram in grams if len(tokens) >= size - 1 and gram[:-1] == tail}


class TestNgramBlock:
    @settings(max_examples=300, deadline=None)
    @given(
        st.lists(st.integers(0, 3), min_size=1, max_size=12),
        st.lists(st.integers(0, 3), max_size=12),
        st.lists(st.integers(0, 3), max_size=5),
        st.integers(1, 4),
        st.integers(0, 9),
        st.data(),
    )
    def test_bars_what_the_definition_bars_at_every_position(
        self, prompt: list[int], output: list[int], drafts: list[int], size: int, span: int,
        data: st.DataObject,
    ) -> None:  # fmt: skip
        sampler = row(prompt, no_repeat_ngram_size=size, no_repeat_ngram_window=span)
        for token in output:
            sampler.advance(token)
        kept = data.draw(st.integers(0, len(output)))
        sampler.rewind(kept)
        for _ in range(2):
            window = sampler.window(tuple(drafts))
            for place in range(len(drafts) + 1):
                history = [*prompt, *output[:kept], *drafts[:place]]
                assert barred(window, place) == repeated(history, size, span)


def run(sampler: SamplerRow, tokens: Sequence[int]) -> None:
    for token in tokens:
        sampler.advance(token)


class TestThinking:
    def test_the_closing_marker_counts_and_the_answer_does_not(self) -> None:
        sampler = row(reasoning=reasoning())
        thinking = sampler.thinking
        assert thinking is not None and thinking.tokens(0) == 0
        run(sampler, [5, 6, STOP, 7, 8])
        assert [thinking.tokens(outputs) for outputs in range(6)] == [0, 1, 2, 3, 3, 3]
        sampler.rewind(2)
        assert thinking.tokens(2) == 2

    def test_without_a_block_there_is_no_count(self) -> None:
        sampler = row(reasoning=reasoning(open=False))
        thinking = sampler.thinking
        assert thinking is not None and thinking.tokens(0) == -1
        assert thinking.opening_id() == START
        run(sampler, [5, 6])
        assert thinking.tokens(2) == -1 and thinking.opening_id() == -1

    def test_a_drawn_marker_opens_the_block_and_counts(self) -> None:
        sampler = row(reasoning=reasoning(open=False, budget=2))
        run(sampler, [START, 5])
        window = sampler.window((6, STOP))
        assert window.forced.tolist() == [-1, STOP, -1]
        run(sampler, [6, STOP, 7])
        assert sampler.thinking is not None
        assert [sampler.thinking.tokens(outputs) for outputs in range(6)] == [-1, 1, 2, 3, 4, 4]

    def test_markers_of_several_ids_are_found_wherever_they_begin(self) -> None:
        marks = reasoning(start_ids=[START, START, 59], end_ids=[STOP, STOP, 58], open=False)
        sampler = row(reasoning=marks)
        run(sampler, [START, START, START, 59, 4, STOP, STOP, STOP, 58, 5])
        assert sampler.thinking is not None
        counts = [sampler.thinking.tokens(outputs) for outputs in range(11)]
        assert counts == [-1, -1, -1, -1, 3, 4, 5, 6, 7, 8, 8]

    @pytest.mark.parametrize("budget", [0, 1, 2, 3, 9])
    def test_the_budget_forces_transition_and_marker_one_by_one(self, budget: int) -> None:
        """Whatever the window, the output is that of plain decoding."""
        marks = reasoning(budget=budget, transition_ids=[50, 51], end_ids=[STOP, 58])
        free = [5, 6, 7, 8, 9, 10]
        expected = [*free[:budget], 50, 51, STOP, 58] if budget <= len(free) else free
        for width in (1, 2, 3, 8):
            sampler, output = row(reasoning=marks), []
            while len(output) < len(expected):
                rest = expected[len(output) :][:width]
                window = sampler.window(rest[:-1])
                for place, token in enumerate(rest):
                    forced = len(output) + place >= budget
                    assert window.forced[place] == (token if forced else -1)
                run(sampler, rest)
                output += rest
            assert not sampler.constrained or budget > len(free)

    def test_a_marker_that_began_by_itself_is_finished_without_a_transition(self) -> None:
        marks = reasoning(budget=2, transition_ids=[50], end_ids=[STOP, 58])
        sampler = row(reasoning=marks)
        run(sampler, [5, STOP])
        assert sampler.window(()).forced.tolist() == [58]

    def test_a_tool_opener_closes_the_block_and_belongs_to_the_answer(self) -> None:
        sampler = row(reasoning=reasoning(opener_ids=[TOOL], budget=5))
        thinking = sampler.thinking
        assert thinking is not None
        run(sampler, [5])
        assert thinking.answers(TOOL) and not thinking.answers(6) and not thinking.answers(STOP)
        assert thinking.answer_places((TOOL, 6)) == [False, True, True]
        run(sampler, [TOOL, 6])
        assert thinking.tokens(3) == 1 and not sampler.constrained

    def test_the_answer_begins_behind_the_marker_inside_a_window_too(self) -> None:
        thinking = row(reasoning=reasoning()).thinking
        assert thinking is not None
        assert thinking.answer_places((5, STOP, 6)) == [False, False, True, True]

    def test_an_order_to_answer_closes_an_open_block_only(self) -> None:
        sampler = row(reasoning=reasoning())
        thinking = sampler.thinking
        assert thinking is not None
        run(sampler, [5, 6])
        assert not sampler.constrained
        assert thinking.end_now() == ""
        assert sampler.constrained and sampler.window(()).forced.tolist() == [STOP]
        run(sampler, [STOP, 7])
        assert not sampler.constrained
        assert "closed already" in thinking.end_now()
        waiting = row(reasoning=reasoning(open=False)).thinking
        assert waiting is not None and "not opened" in waiting.end_now()


def test_a_forced_stop_leaves_the_end_alone_possible_over_any_mask() -> None:
    sampler = row(allowed_token_ids=[5, 6])
    sampler.stopper.arm(END)
    assert sampler.window((5,)).forced.tolist() == [END, END]


def test_padded_drafts_end_what_is_ruled() -> None:
    window = row(min_tokens=9).window((5, -1, -1))
    assert [barred(window, place) for place in range(4)] == [{END}, {END}, set(), set()]


class Named:
    active = True

    def __init__(self, name: str) -> None:
        self.name = name

    def fill(self, window: Window, drafts: Sequence[int]) -> None:
        window.bar(0, [1])

    def advance(self, token: int) -> None: ...

    def rewind(self, outputs: int) -> None: ...


def test_an_added_processor_takes_its_place_in_the_order() -> None:
    sampler = row(min_tokens=1, reasoning=reasoning(), banned_token_ids=[1])
    sampler.add(Named("grammar"))
    names = [processor.name for processor in sampler.processors]
    assert names == ["token_ids", "min_tokens", "grammar", "thinking", "forced_stop"]
    with pytest.raises(KeyError):
        sampler.add(Named("unheard"))


def test_forcing_kinds_stand_last() -> None:
    names = [kind.name for kind in REGISTRY]
    assert names[-2:] == ["thinking", "forced_stop"]
    assert [place_of(name) for name in names] == list(range(len(names)))


FIELDS: list[dict[str, Any]] = [
    {},
    {"min_tokens": 2},
    {"allowed_token_ids": [3, 4, 5]},
    {"banned_token_ids": [4]},
    {"no_repeat_ngram_size": 2},
    {"reasoning": reasoning(budget=2)},
    {"reasoning": reasoning()},
    {"reasoning": reasoning(open=False, budget=1)},
]


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: "-".join(fields) or "none")
def test_a_processor_that_is_not_active_would_write_nothing(fields: dict[str, Any]) -> None:
    """Also not after the token that may be in flight when it was asked."""
    tokens = [5, START, 6, 5, START, STOP, 7, 8, 9, 10]
    for taken in range(len(tokens)):
        for processor in row(**fields).processors:
            sampler = row(**fields)
            run(sampler, tokens[:taken])
            (mine,) = [item for item in sampler.processors if item.name == processor.name]
            if mine.active:
                continue
            run(sampler, tokens[taken : taken + 1])
            window = Window(3, VOCABULARY)
            mine.fill(window, (6, 7))
            assert window.free
