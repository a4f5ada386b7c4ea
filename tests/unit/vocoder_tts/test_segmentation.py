"""Cutting text: independent of how it arrives, and never inside numbers or abbreviations."""

from __future__ import annotations

import pytest
from antiphon_vocoder.text.segmentation import (
    CLAUSE_LIMIT,
    FIRST_CLAUSE_MIN,
    Boundary,
    Segment,
    TextSegmenter,
)
from antiphon_vocoder.text.speakable import speakable
from hypothesis import given, settings
from hypothesis import strategies as st

FRAGMENTS = [
    "The fox", " jumps", ",", ".", "!", "?", " ", "\n", "\n\n", "- item", "1. ", "3.5", "4,000",
    "Dr. ", "e.g. ", "p.m. ", "U.S. ", "etc. ", "No. 5", "…", "...", '"', "”", "—", ";", ":",
    "http://a.b/c?d=1, ",
    "。", "、", "！", "日本", "😀", "**bold**", "`code`", "a" * 60, "word " * 30,
    "(", ")", "x", "Then", "then",
]  # fmt: skip


def segments_of(pieces: list[str], **options: bool) -> tuple[list[Segment], TextSegmenter]:
    segmenter = TextSegmenter(**options)
    segments = [segment for piece in pieces for segment in segmenter.feed(piece)]
    return segments + segmenter.flush(), segmenter


def texts(text: str) -> list[str]:
    return [segment.text for segment in segments_of([text])[0]]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=25), st.data())
def test_any_cut_gives_the_segments_of_the_whole(fragments: list[str], data: st.DataObject) -> None:
    text = "".join(fragments)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12).map(sorted))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole, _ = segments_of([text])
    assert segments_of(pieces)[0] == whole
    assert segments_of(list(text))[0] == whole


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=25))
def test_segments_cover_the_text_in_order(fragments: list[str]) -> None:
    text = "".join(fragments)
    segments, segmenter = segments_of([text])
    assert segmenter.received == len(text)
    assert segmenter.buffered == 0
    position = 0
    for segment in segments:
        assert text[position : segment.start].strip() == ""
        assert segment.start <= segment.end
        assert segment.end - segment.start <= CLAUSE_LIMIT + len(text)
        position = segment.end
    assert text[position:].strip() == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It costs 4,000.50 dollars. Yes.", ["It costs 4,000.50 dollars.", "Yes."]),
        ("Dr. Smith came. He left.", ["Dr. Smith came.", "He left."]),
        ("See e.g. this one. Next.", ["See e.g. this one.", "Next."]),
        ("At 5 p.m. we met. Bye.", ["At 5 p.m. we met.", "Bye."]),
        ("We met at 5 p.m. The end.", ["We met at 5 p.m.", "The end."]),
        ("Go to www.example.com/a.b now. Ok.", ["Go to www.example.com/a.b now.", "Ok."]),
        ("The U.S. Army. Then.", ["The U.S. Army.", "Then."]),
        ("I said no. Then I left.", ["I said no.", "Then I left."]),
        ("No. 5 is alive. Good.", ["No. 5 is alive.", "Good."]),
        ("The cat sat. It slept.", ["The cat sat.", "It slept."]),
        ("Wait... what? Oh!", ["Wait...", "what?", "Oh!"]),
        ('"Really?" she said. "Yes."', ['"Really?" she said.', '"Yes."']),
        ("1. First thing\n2. Second thing", ["1. First thing", "2. Second thing"]),
        ("one line\nwraps here. Done.", ["one line wraps here.", "Done."]),
        ("Title\n\nBody text.", ["Title", "Body text."]),
        ("これは文です。次！", ["これは文です。", "次！"]),
        ("**Bold** and `code` 😀 done.", ["Bold and code done."]),
        ("J. Smith wrote it. Good.", ["J. Smith wrote it.", "Good."]),
        ("", []),
        ("   \n ", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert texts(text) == expected


def test_first_clause_is_spoken_before_its_sentence_ends() -> None:
    segmenter = TextSegmenter()
    assert segmenter.feed("Well, my dear old friends, ")[0].text == "Well, my dear old friends,"
    assert segmenter.feed("this goes on, and on, and on, ") == []
    rest = segmenter.feed("until here. ")
    assert [(s.text, s.boundary, s.first) for s in rest] == [
        ("this goes on, and on, and on, until here.", Boundary.SENTENCE, False)
    ]


def test_a_short_first_clause_is_not_cut() -> None:
    text = "Yes, I do."
    assert len("Yes,") < FIRST_CLAUSE_MIN
    assert texts(text) == [text]


def test_whole_sentences_when_asked() -> None:
    text = "Well, my dear old friends, this is one sentence."
    assert [s.text for s in segments_of([text], first_clause=False)[0]] == [text]


def test_long_sentences_are_cut_at_clauses_then_words() -> None:
    clauses = "a clause of words, " * 20
    for segment in segments_of([clauses])[0][1:-1]:
        assert segment.boundary is Boundary.CLAUSE
        assert segment.text.endswith(",")
        assert len(segment.text) <= CLAUSE_LIMIT
    for text in texts("word " * 200):
        assert len(text) <= CLAUSE_LIMIT
        assert set(text.split()) == {"word"}


def test_flush_speaks_the_rest_and_begins_a_new_utterance() -> None:
    segmenter = TextSegmenter()
    segmenter.feed("First sentence here. Second is not")
    assert [(s.text, s.end) for s in segmenter.flush()] == [("Second is not", 34)]
    again = segmenter.feed(" and here it goes on, after the flush")
    assert again[0].first
    assert again[0].start == 35


def test_clear_drops_the_buffer_and_keeps_offsets() -> None:
    segmenter = TextSegmenter()
    segmenter.feed("to be dropped")
    segmenter.clear()
    assert segmenter.feed("Kept. ")[0].start == 13


def test_what_cannot_be_spoken_is_an_empty_segment() -> None:
    assert texts("😀😀. Hello.") == ["", "Hello."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see [the docs](http://a.b/c) now", "see the docs now"),
        ("# Title", "Title"),
        ("a_b stays, _this_ goes", "a_b stays, this goes"),
        ("<break time='1s'/>hello", "hello"),
        ("20 °C, 5 € & 3 %", "20 °C, 5 € & 3 %"),
        ("👩‍💻 codes", "codes"),
        ("!!! ...", ""),
        ("2 < 3 and 5 > 4", "2 < 3 and 5 > 4"),
    ],
)
def test_speakable(text: str, expected: str) -> None:
    assert speakable(text) == expected
