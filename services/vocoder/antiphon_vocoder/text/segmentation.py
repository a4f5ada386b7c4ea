"""Cuts a growing text into what is spoken at once.

A cut depends on the joined text only, never on how the text arrived: a decision is put off until
the characters that it looks at are there (or the text ends), so any cut of the input into pieces
gives the same segments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from antiphon_vocoder.text.abbreviations import NUMBERED, TITLES, TRAILING
from antiphon_vocoder.text.speakable import speakable

FIRST_CLAUSE_MIN = 20
"""Characters from which the first segment may end at a clause instead of a sentence."""
CLAUSE_LIMIT = 200
SENTENCE_LIMIT = 600

_SENTENCE_MARKS = ".!?\u2026"
_WIDE_SENTENCE_MARKS = "。！？｡．"
_CLAUSE_MARKS = ",;:"
_WIDE_CLAUSE_MARKS = "、，；：—"
_CLOSERS = "\"'\u201d\u2019»)]}*_`~」』）】"
_QUOTES = "\"'\u201d\u2019»」』"
_MARKS = re.compile(
    f"[{re.escape(_SENTENCE_MARKS + _WIDE_SENTENCE_MARKS + _CLAUSE_MARKS + _WIDE_CLAUSE_MARKS)}\n]"
)
_LIST_ITEM = re.compile(r"[ \t]*(\n|[-*•#>]|\d{1,3}[.)]\s)")
_LIST_LOOKAHEAD = 8
_WORD_BEFORE = re.compile(r"[^\s(\[{\"'\u201c\u2018]+$")
_DOTTED = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]$")


class Boundary(Enum):
    """What a segment ends with; it sets the pause after it."""

    CLAUSE = "clause"
    SENTENCE = "sentence"


@dataclass(frozen=True)
class Segment:
    """A run of the joined text that is spoken at once."""

    text: str
    """Cleaned for speech; empty when nothing of it can be spoken."""
    start: int
    """Offset of its first character in the joined text."""
    end: int
    """Offset behind its last character."""
    boundary: Boundary
    first: bool
    """First of an utterance: the listener waits for it."""
    raw: str
    """The run as it was written; it begins at ``start``."""


class _NeedMore(Exception):
    """The decision depends on text that has not arrived."""


class TextSegmenter:
    """Incremental segmentation of one stream's text.

    Sentences are the unit. The first segment, after the start, a flush or a clear, ends at the
    first clause of at least ``FIRST_CLAUSE_MIN`` characters when ``first_clause`` is set. A
    sentence longer than ``limit`` is cut at its last clause within the limit, else at its last
    space, else at the limit.
    """

    def __init__(self, *, first_clause: bool = True, limit: int = CLAUSE_LIMIT) -> None:
        self._first_clause = first_clause
        self._limit = limit
        self._text = ""
        self._offset = 0
        self._scanned = 0
        self._last_clause = 0
        self._first = True

    @property
    def received(self) -> int:
        """Characters received since the start of the stream."""
        return self._offset + len(self._text)

    @property
    def buffered(self) -> int:
        """Characters that no segment has taken yet."""
        return len(self._text)

    def feed(self, text: str) -> list[Segment]:
        """Adds text; returns the segments that it completes."""
        self._text += text
        return self._take(final=False)

    def flush(self) -> list[Segment]:
        """Ends the utterance: returns everything buffered as segments."""
        segments = self._take(final=True)
        if self._text.strip():
            segments.append(self._cut(len(self._text), Boundary.SENTENCE))
        else:
            self._drop(len(self._text))
        self._first = True
        return segments

    def clear(self) -> None:
        """Drops what is buffered and begins a new utterance."""
        self._drop(len(self._text))
        self._first = True

    def _take(self, final: bool) -> list[Segment]:
        segments = []
        while True:
            try:
                cut = self._next_cut(final)
            except _NeedMore:
                return segments
            if cut is None:
                return segments
            segments.append(self._cut(*cut))

    def _next_cut(self, final: bool) -> tuple[int, Boundary] | None:
        """The next cut as (index, boundary), or None when the buffer holds none."""
        self._drop_leading_space()
        while (mark := _MARKS.search(self._text, self._scanned)) is not None:
            if mark.start() >= self._limit:
                break
            index, boundary = self._judge(mark.start(), final)
            if boundary is Boundary.SENTENCE:
                return index, boundary
            if boundary is Boundary.CLAUSE:
                if self._first and self._first_clause and index >= FIRST_CLAUSE_MIN:
                    return index, boundary
                self._last_clause = index
            self._scanned = index
        if len(self._text) > self._limit:
            return self._forced_cut(), Boundary.CLAUSE
        return None

    def _judge(self, index: int, final: bool) -> tuple[int, Boundary | None]:
        """What the mark at ``index`` is: (index behind it, its boundary or None).

        Raises:
            _NeedMore: text behind it decides and is not there yet.
        """
        text = self._text
        mark = text[index]
        if mark == "\n":
            return self._judge_newline(index, final)
        end = index + 1
        wide = mark in _WIDE_SENTENCE_MARKS or mark in _WIDE_CLAUSE_MARKS
        sentence = mark in _SENTENCE_MARKS or mark in _WIDE_SENTENCE_MARKS
        while end < len(text) and (
            text[end] in _CLOSERS
            or (sentence and text[end] in _SENTENCE_MARKS + _WIDE_SENTENCE_MARKS)
        ):
            end += 1
        if end == len(text) and not final:
            raise _NeedMore
        if end < len(text) and not wide and not text[end].isspace():
            return end, None
        if not sentence:
            return end, Boundary.CLAUSE
        if mark == "." and end == index + 1 and self._is_abbreviation(index, final):
            return end, None
        if text[end - 1] in _QUOTES and self._following_character(end - 1, final).islower():
            # "Really?" she said.
            return end, None
        return end, Boundary.SENTENCE

    def _judge_newline(self, index: int, final: bool) -> tuple[int, Boundary | None]:
        """A line break is a space unless a blank line or a list item follows."""
        following = self._text[index + 1 : index + 1 + _LIST_LOOKAHEAD]
        if _LIST_ITEM.match(following):
            return index + 1, Boundary.SENTENCE
        if len(following) < _LIST_LOOKAHEAD and not final:
            raise _NeedMore
        return index + 1, None

    def _is_abbreviation(self, index: int, final: bool) -> bool:
        """Whether the full stop at ``index``, with white space or the end behind it, belongs to
        its word."""
        found = _WORD_BEFORE.search(self._text, 0, index)
        word = found.group() if found else ""
        lower = word.lower()
        if word.isdigit():
            # "1. First" is a list marker; "in 1999. Then" is not.
            return found is not None and found.start() == 0
        if lower in TITLES or (len(word) == 1 and word.isupper() and word != "I"):
            return True
        if lower in NUMBERED:
            return self._following_character(index, final).isdigit()
        if lower in TRAILING:
            return not self._following_character(index, final).isupper()
        return _DOTTED.search(word) is not None

    def _following_character(self, index: int, final: bool) -> str:
        """First character behind the white space after ``index``; "A" where the text ends, which
        every rule takes as the beginning of a sentence."""
        rest = self._text[index + 1 : index + 1 + self._limit].lstrip()
        if not rest and not final and len(self._text) <= index + 1 + self._limit:
            raise _NeedMore
        return rest[0] if rest else "A"

    def _forced_cut(self) -> int:
        if self._last_clause:
            return self._last_clause
        space = max(self._text.rfind(" ", 1, self._limit), self._text.rfind("\n", 1, self._limit))
        return space + 1 if space > 0 else self._limit

    def _cut(self, index: int, boundary: Boundary) -> Segment:
        raw = self._text[:index]
        segment = Segment(
            text=speakable(raw),
            start=self._offset,
            end=self._offset + len(raw.rstrip()),
            boundary=boundary,
            first=self._first,
            raw=raw,
        )
        self._drop(index)
        self._first = self._first and not segment.text
        return segment

    def _drop_leading_space(self) -> None:
        space = len(self._text) - len(self._text.lstrip())
        if space:
            self._drop(space)

    def _drop(self, count: int) -> None:
        self._text = self._text[count:]
        self._offset += count
        self._scanned = max(self._scanned - count, 0)
        self._last_clause = 0
