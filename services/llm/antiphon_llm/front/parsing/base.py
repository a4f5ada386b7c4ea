"""What the families share: how content and calls alternate, and how that is enforced."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from antiphon_llm.front.parsing import tags
from antiphon_llm.front.parsing.reader import CallTooLong, Markers, Reader, Steps
from antiphon_llm.front.parsing.tags import Tag

NAME = re.compile(r"[A-Za-z0-9_.\-]*")


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the parser and the grammar need it."""

    name: str
    schema: Mapping[str, Any]
    """JSON schema of the arguments, an object: the types of what is written as plain text."""
    grammar: Mapping[str, Any]
    """The schema as the grammar compiler holds to it."""


Tools = Mapping[str, ToolSpec]


class CallFormat(ABC):
    """How one family of models writes tool calls."""

    name: ClassVar[str]
    markers: ClassVar[Sequence[str]] = ()
    """Strings that may be control tokens of the model and must reach the parser as text."""

    @property
    def opening_texts(self) -> Sequence[str]:
        """How a call may begin in the middle of a text."""
        return ()

    wraps_answers: ClassVar[bool] = False
    """Whether an answer stands between markers, so that a constraint on it must, too."""

    @abstractmethod
    def read(self, reader: Reader, tools: Tools) -> Steps:
        """Reads content and calls to the end of the output."""

    @abstractmethod
    def some(self, tools: Sequence[ToolSpec], *, single: bool, whitespace: int) -> Tag:
        """One call or, unless ``single``, several, and nothing else."""

    @abstractmethod
    def free(self, tools: Sequence[ToolSpec], *, single: bool, whitespace: int) -> Tag:
        """Any text, in which whatever begins like a call is one."""

    def answer(self, content: Tag) -> Tag:
        """An output without calls whose content is bound."""
        return content


def written(format: CallFormat, name: str, arguments: Mapping[str, Any]) -> str:
    """A call as a model of this format writes it."""
    constants = {key: {"const": value} for key, value in arguments.items()}
    schema = {"type": "object", "properties": constants, "required": list(constants)}
    spec = ToolSpec(name, schema, schema)
    return tags.example(format.some([spec], single=True, whitespace=1))


class MarkedFormat(CallFormat):
    """A format whose calls stand between texts.

    A call begins with one of ``openers``, anywhere in the content. ``bare`` openers are too
    common for that: they count only where the content begins, or behind another call.
    """

    openers: ClassVar[Markers | None] = None
    bare: ClassVar[Sequence[str]] = ()
    trigger: ClassVar[str] = ""
    """Beginning of a call in free text, from which on the grammar holds."""
    separator: ClassVar[str] = ""
    """Between two calls."""
    wrapper: ClassVar[tuple[str, str] | None] = None
    """Around all calls of an output, where they form a list."""

    def __init__(self) -> None:
        first = (*(self.openers.texts if self.openers else ()), *self.bare)
        self._first = Markers(*first)

    @property
    def opening_texts(self) -> Sequence[str]:
        return self.openers.texts if self.openers else ()

    def read(self, reader: Reader, tools: Tools) -> Steps:
        """Reads content and calls to the end of the output."""
        at_start = True
        while True:
            gap = opener = ""
            if at_start:
                gap = yield from reader.space()
                if (yield from reader.peek()) == "":
                    # White space behind a call belongs to the format.
                    reader.content("" if reader.calls else gap)
                    return True
                opener = yield from reader.any_of(self._first)
                if not opener and reader.calls and reader.cut_marker(self._first):
                    return True
                if not opener:
                    reader.content(gap)
            if not opener and self.openers is not None:
                opener = yield from reader.until(self.openers, reader.content)
            if not opener:
                return (yield from read_text(reader))
            calls = reader.calls
            yield from self._calls(reader, tools, gap, opener)
            at_start = reader.calls > calls

    def _calls(self, reader: Reader, tools: Tools, gap: str, opener: str) -> Steps:
        reader.begin_call(gap + opener)
        try:
            yield from self.read_calls(reader, tools, opener)
            if reader.call_is_open and (yield from reader.peek()):
                reader.close_call()  # Malformed: what follows is no part of it.
        except CallTooLong:
            if reader.call_is_open:
                reader.close_call()
        reader.end_call(announced=opener not in self.bare or reader.calls > 0)
        return True

    @abstractmethod
    def read_calls(self, reader: Reader, tools: Tools, opener: str) -> Steps:
        """Reads what stands behind an opener: one call, or a list of them."""

    @abstractmethod
    def tag(self, tool: ToolSpec, whitespace: int) -> Tag:
        """One call of a tool, without the wrapper."""

    def some(self, tools: Sequence[ToolSpec], *, single: bool, whitespace: int) -> Tag:
        """One call or, unless ``single``, several, and nothing else."""
        calls = tags.several(
            [self.tag(tool, whitespace) for tool in tools], self.separator, single=single
        )
        return tags.tag(self.wrapper[0], calls, self.wrapper[1]) if self.wrapper else calls

    def free(self, tools: Sequence[ToolSpec], *, single: bool, whitespace: int) -> Tag:
        """Any text, in which whatever begins like a call is one."""
        if self.wrapper:
            calls = [self.some(tools, single=single, whitespace=whitespace)]
        else:
            calls = [self.tag(tool, whitespace) for tool in tools]
        return tags.triggered(self.trigger, calls, single=single)


class BareFormat(MarkedFormat):
    """A format whose calls stand where the content begins, without a marker before them."""

    @abstractmethod
    def beginnings(self, tools: Sequence[ToolSpec]) -> Sequence[str]:
        """How calls may begin: text that begins so is read as calls."""

    def free(self, tools: Sequence[ToolSpec], *, single: bool, whitespace: int) -> Tag:
        """Calls, or a text that does not begin like one."""
        calls = self.some(tools, single=single, whitespace=whitespace)
        return tags.either(calls, tags.text_unless(self.beginnings(tools)))


def read_text(reader: Reader) -> Steps:
    """Passes everything on as content."""
    while (yield from reader.peek()):
        reader.content(reader.rest())
    return True
