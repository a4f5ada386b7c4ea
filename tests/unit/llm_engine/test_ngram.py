"""The n-gram drafter proposes what followed the end of the text last time."""

from __future__ import annotations

import random
from collections.abc import Sequence

from antiphon_llm.speculation.ngram import LONGEST, SHORTEST, NgramDrafter, NgramIndex
from hypothesis import given, settings
from hypothesis import strategies as st

from .scheduling import make_request


def search(tokens: Sequence[int], depth: int, index: NgramIndex | None = None) -> list[int]:
    """The latest earlier occurrence of the longest match, looked for place by place; with an
    index only where no later n-gram has the same hash."""
    length = len(tokens)
    for n in range(LONGEST, SHORTEST - 1, -1):
        for place in range(length - 1, n - 1, -1):
            if tokens[place - n : place] == tokens[length - n :]:
                copied = list(tokens[place:])
                return [copied[i % len(copied)] for i in range(depth)]
            if index is not None and same_key(index, tokens, place, n):
                break
    return []


def same_key(index: NgramIndex, tokens: Sequence[int], place: int, n: int) -> bool:
    """Whether the n-gram before a place has the key of the text's end."""
    before, end = index._keys(tokens, place), index._keys(tokens, len(tokens))
    return before[n - SHORTEST] == end[n - SHORTEST]


pieces_of_texts = st.tuples(
    st.lists(st.integers(0, 5), min_size=1, max_size=250),
    st.lists(st.integers(1, 40), min_size=1, max_size=20),
)


@given(pieces_of_texts, st.integers(1, 7))
@settings(max_examples=100, deadline=None)
def test_one_by_one_or_at_once_it_equals_a_search(
    drawn: tuple[list[int], list[int]], depth: int
) -> None:
    text, pieces = drawn
    index, end, turn = NgramIndex(), 0, 0
    while end < len(text):
        end = min(len(text), end + pieces[turn % len(pieces)])
        turn += 1
        assert index.follow(text[:end], depth) == search(text[:end], depth, index)


def test_few_matches_are_lost_to_equal_hashes() -> None:
    chance = random.Random(3)
    text = [chance.randrange(40_000) for _ in range(3000)]
    for _ in range(60):
        start = chance.randrange(3000)
        text += [*text[start : start + 40], chance.randrange(40_000)]
    index = NgramIndex()
    found = wanted = 0
    for end in range(3000, len(text)):
        expected = search(text[:end], 4)
        proposed = index.follow(text[:end], 4)
        wanted += bool(expected)
        found += bool(expected) and proposed == expected
        assert len(proposed) in (0, 4)
    assert wanted > 2000 and found >= 0.9 * wanted


def test_the_longest_match_counts_then_the_latest() -> None:
    follow = NgramIndex().follow
    assert follow([1, 2, 3, 4, 50, 9, 3, 4, 60, 2, 3, 4], 1) == [50]
    assert NgramIndex().follow([1, 2, 50, 1, 2, 60, 1, 2], 2) == [60, 1]
    assert NgramIndex().follow([1, 2, 3], 4) == []
    assert NgramIndex().follow([7], 4) == []


def test_a_text_that_repeats_itself_goes_on() -> None:
    assert NgramIndex().follow([5, 5, 5], 4) == [5, 5, 5, 5]
    assert NgramIndex().follow([1, 2, 3] * 3, 7) == [1, 2, 3, 1, 2, 3, 1]


def test_requests_have_their_own_index_until_they_end() -> None:
    drafter = NgramDrafter()
    one, other = make_request(1, [1, 2, 3, 1, 2]), make_request(2, [1, 2, 9, 1, 2])
    proposal = drafter.draft([one, other, make_request(3, 4)], 2)
    assert proposal.tokens == [[3, 1], [9, 1], []] and proposal.q is None
    assert drafter.expects([one, make_request(4, 5)]) == [True, False]
    drafter.release(one)
    drafter.release(one)
    assert drafter.draft([one], 1).tokens == [[3]]
