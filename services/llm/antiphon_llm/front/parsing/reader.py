"""Reading a text that arrives in pieces, as if it were all there.

A format is read by a generator that calls the reader's methods with ``yield from``. A method that
cannot decide on the text at hand yields, and goes on when more has come or the output has ended.
Text is consumed only once it is decided, and each character is looked at a bounded number of
times: what a family makes of an output does not depend on how it was cut, and the whole costs
time linear in its length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator

from antiphon_llm.front.parsing.pieces import (
    Arguments,
    CallClosed,
    CallOpened,
    Content,
    Piece,
    Thought,
)

CALL_LIMIT = 256 * 1024
"""Characters of one call; what follows is content."""
GAP_LIMIT = 64
"""Characters of white space that are looked at together."""
NAME_LIMIT = 256
"""Characters of a name or key."""

Steps = Generator[None, None, bool]
"""A part of the reading; returns whether it found what it reads."""
TextSteps = Generator[None, None, str]
Emit = Callable[[str], None]

_SPACE = re.compile(r"\s*")
_IN_STRING = re.compile(r'[^"\\]*')
_IN_VALUE = re.compile(r'[^"{}\[\]]*')
_SCALAR = re.compile(r"[^\s,\]}]*")


class CallTooLong(Exception):
    """The open call reached ``CALL_LIMIT``."""


class Markers:
    """Strings that change the state: finds the earliest, and the longest of those."""

    __slots__ = ("firsts", "longest", "pattern", "prefixes", "texts")

    def __init__(self, *texts: str) -> None:
        self.texts = tuple(sorted(set(texts), key=len, reverse=True))
        self.pattern = re.compile("|".join(map(re.escape, self.texts)))
        self.longest = len(self.texts[0])
        self.prefixes = {text[:size] for text in self.texts for size in range(1, len(text))}
        self.firsts = re.compile("[" + "".join(re.escape(c) for c in {t[0] for t in texts}) + "]")

    def pending(self, text: str, start: int, end: int) -> int:
        """Where the earliest suffix of ``text[start:end]`` begins that could become a marker."""
        place = max(start, end - self.longest + 1)
        while match := self.firsts.search(text, place, end):
            place = match.start()
            if text[place:end] in self.prefixes:
                return place
            place += 1
        return end


class Reader:
    """The undecided end of one output, and the pieces found so far.

    ``state`` is content, reasoning or call.
    """

    def __init__(self, *, call_limit: int = CALL_LIMIT) -> None:
        self.pieces: list[Piece] = []
        self.state = "content"
        self.calls = 0
        self.call_is_open = False
        self._text = ""
        self._at = 0
        self._ended = False
        self._cut = False
        self._call_limit = call_limit
        self._room: int | None = None
        self._record: list[str] | None = None
        self._empty_call = False

    # Fed by the parser

    def feed(self, text: str) -> None:
        """More output."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self, *, cut: bool = False) -> None:
        """No more output comes; ``cut`` says that the model would have gone on."""
        self._ended = True
        self._cut = cut

    @property
    def held(self) -> int:
        """Characters that are not decided yet."""
        return len(self._text) - self._at

    # What was found

    def content(self, text: str) -> None:
        if text:
            self.pieces.append(Content(text))

    def thought(self, text: str) -> None:
        if text:
            self.pieces.append(Thought(text))

    def open_call(self, name: str) -> None:
        """What was read since ``begin_call`` is a call, whatever follows."""
        self.calls += 1
        self.call_is_open = True
        self._record = None
        self._empty_call = True
        self.pieces.append(CallOpened(name))

    def arguments(self, text: str) -> None:
        if text:
            self._empty_call = False
            self.pieces.append(Arguments(text))

    def close_call(self) -> None:
        """A call without arguments has the empty object."""
        if self._empty_call:
            self.arguments("{}")
        self.call_is_open = False
        self.pieces.append(CallClosed())

    def begin_call(self, consumed: str = "") -> None:
        """From here on text belongs to a call, up to the limit, if ``open_call`` follows."""
        self.state = "call"
        self._room = self._call_limit
        self._record = [consumed]

    def drop_record(self) -> None:
        """What was read since ``begin_call`` is neither a call nor content."""
        self._record = None

    def end_call(self, *, announced: bool = False) -> None:
        """Behind the call; what turned out to be none becomes content.

        Args:
            announced: only calls begin like this one: cut before its name it is no content.
        """
        if self._record is not None and not (announced and self._cut and self.over):
            self.content("".join(self._record))
        self._record = None
        self._room = None
        self.state = "content"

    # Reading

    @property
    def over(self) -> bool:
        """Whether everything was consumed and nothing more comes."""
        return self._ended and self._at == len(self._text)

    def _limit(self) -> int:
        """End of the text at hand that may be looked at."""
        size = len(self._text)
        return size if self._room is None else min(size, self._at + self._room)

    def _more(self) -> Steps:
        """Waits for more text; False where the output has ended."""
        if self._room is not None and self._at + self._room <= len(self._text):
            raise CallTooLong
        if self._ended:
            return False
        yield
        return True

    def _take(self, end: int) -> str:
        text = self._text[self._at : end]
        if self._room is not None:
            self._room -= end - self._at
        if self._record is not None and text:
            self._record.append(text)
        self._at = end
        return text

    def peek(self) -> TextSteps:
        """The next character, not consumed; empty at the end."""
        while self._at >= self._limit():
            if not (yield from self._more()):
                return ""
        return self._text[self._at]

    def unread(self, text: str) -> None:
        """Puts consumed text back; outside of calls."""
        self._text = text + self._text[self._at :]
        self._at = 0

    def rest(self) -> str:
        """Consumes the text at hand."""
        return self._take(self._limit())

    def part(self, pattern: re.Pattern[str]) -> str:
        """Consumes the run of a class of characters as far as it is at hand."""
        match = pattern.match(self._text, self._at, self._limit())
        return self._take(match.end()) if match else ""

    def characters(self, count: int) -> TextSteps:
        """Consumes so many characters; fewer at the end."""
        while self._limit() - self._at < count:
            if not (yield from self._more()):
                break
        return self._take(min(self._limit(), self._at + count))

    def literal(self, text: str) -> Steps:
        """Consumes exactly this text if it comes next.

        Where a call is cut inside the text, the beginning that is there is consumed, too.
        """
        while True:
            end = min(self._limit(), self._at + len(text))
            found = self._text[self._at : end]
            if found == text:
                self._take(end)
                return True
            if not text.startswith(found):
                return False
            if not (yield from self._more()):
                if self._cut and self._room is not None:
                    self._take(end)
                return False

    def cut_marker(self, markers: Markers) -> bool:
        """Consumes the beginning of a marker if the output was cut inside it."""
        if not self._cut or self._text[self._at :] not in markers.prefixes:
            return False
        self._take(len(self._text))
        return True

    def any_of(self, markers: Markers) -> TextSteps:
        """Consumes the marker that comes next; empty if none does."""
        while True:
            limit = self._limit()
            match = markers.pattern.match(self._text, self._at, limit)
            undecided = self._text[self._at : limit] in markers.prefixes or self._at == limit
            if undecided and (yield from self._more()):
                continue
            return self._take(match.end()) if match else ""

    def space(self) -> TextSteps:
        """Consumes white space, at most ``GAP_LIMIT`` characters of it."""
        while True:
            limit = self._limit()
            match = _SPACE.match(self._text, self._at, min(limit, self._at + GAP_LIMIT))
            end = match.end() if match else self._at
            whole = end < limit or end - self._at >= GAP_LIMIT
            if whole or not (yield from self._more()):
                return self._take(end)

    def run(self, pattern: re.Pattern[str], limit: int = NAME_LIMIT) -> TextSteps:
        """Consumes the longest run of a class of characters; empty where it passes ``limit``."""
        while True:
            match = pattern.match(self._text, self._at, self._limit())
            end = match.end() if match else self._at
            if end - self._at > limit:
                return ""
            if end < self._limit() or not (yield from self._more()):
                return self._take(end)

    def until(self, markers: Markers, emit: Emit) -> TextSteps:
        """Passes text on up to the next marker, which is consumed; empty at the end.

        All text is passed on but the longest end of it that is a proper prefix of a marker.
        """
        while True:
            limit = self._limit()
            match = markers.pattern.search(self._text, self._at, limit)
            pending = markers.pending(self._text, self._at, limit)
            if match is not None and match.start() < pending:
                emit(self._take(match.start()))
                return self._take(match.end())
            emit(self._take(pending))
            if not (yield from self._more()):
                # Behind the end nothing is pending: a marker that waited for a longer one counts.
                match = markers.pattern.search(self._text, self._at, limit)
                emit(self._take(match.start() if match else len(self._text)))
                return self._take(match.end()) if match else ""

    def json_value(self, emit: Emit) -> Steps:
        """Passes a JSON value on as it comes; False where the output ends inside.

        Brackets are counted and strings told apart, nothing else is checked.
        """
        first = yield from self.peek()
        if first and first not in '"{[':
            return (yield from self._scalar(emit))
        depth, quoted, escaped = 0, False, False
        while True:
            if (yield from self.peek()) == "":
                return False
            limit = self._limit()
            place = self._at
            while place < limit:
                if escaped:
                    escaped = False
                    place += 1
                    continue
                match = (_IN_STRING if quoted else _IN_VALUE).match(self._text, place, limit)
                place = match.end() if match else place
                if place == limit:
                    break
                character = self._text[place]
                place += 1
                if character == "\\":
                    escaped = True
                elif character == '"':
                    quoted = not quoted
                else:
                    depth += 1 if character in "{[" else -1
                if depth <= 0 and not quoted and not escaped:
                    emit(self._take(place))
                    return True
            emit(self._take(place))

    def _scalar(self, emit: Emit) -> Steps:
        found = False
        while True:
            limit = self._limit()
            match = _SCALAR.match(self._text, self._at, limit)
            end = match.end() if match else self._at
            text = self._take(end)
            found = found or bool(text)
            emit(text)
            if end < limit or not (yield from self._more()):
                return found

    def json_text(self) -> TextSteps:
        """A whole JSON value as it was written; empty where the output ends inside."""
        parts: list[str] = []
        complete = yield from self.json_value(parts.append)
        return "".join(parts) if complete else ""

    def json_string(self) -> TextSteps:
        """A JSON string, decoded; empty where none comes next."""
        if (yield from self.peek()) != '"':
            return ""
        text = yield from self.json_text()
        try:
            return json.loads(text)
        except ValueError:
            return ""
