"""The first words of a reply reach the voice early, at the same place whatever the cuts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from antiphon_gateway.realtime.first_clause import FirstClause
from hypothesis import given
from hypothesis import strategies as st


def place(text: str, cuts: list[int], limit: int = 6) -> int | None:
    """Offset of the flush in the joined text."""
    clause = FirstClause(limit)
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for start, end in pairwise(bounds):
        found = clause.cut(text[start:end])
        if found is not None:
            return start + found
    return None


@pytest.mark.parametrize(
    ("text", "spoken_first"),
    [
        ("one two three four five six seven eight", "one two three four five six "),
        ("one two three four five six", None),
        ("Well, one two three four five six seven eight", None),
        ("one two three four five six. Seven", None),
        ("  one two\tthree four five six  seven", "  one two\tthree four five six  "),
    ],
)
def test_the_place_of_the_flush(text: str, spoken_first: str | None) -> None:
    found = place(text, [])
    assert (None if found is None else text[:found]) == spoken_first


@given(st.text(alphabet="ab ,.\n", max_size=80), st.lists(st.integers(0, 80), max_size=20))
def test_the_cuts_do_not_matter(text: str, cuts: list[int]) -> None:
    assert place(text, cuts) == place(text, [])


def test_zero_leaves_it_to_the_voice() -> None:
    assert place("one two three four five six seven eight", [], limit=0) is None
