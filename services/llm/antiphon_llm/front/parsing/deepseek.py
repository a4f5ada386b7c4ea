"""Calls of the DeepSeek models, each part between marker tokens."""

from __future__ import annotations

from antiphon_llm.front.parsing import tags
from antiphon_llm.front.parsing.base import NAME, MarkedFormat, Tools, ToolSpec
from antiphon_llm.front.parsing.reader import Markers, Reader, Steps
from antiphon_llm.front.parsing.tags import Tag

ALL_BEGIN, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"


class DeepSeek(MarkedFormat):
    """Reads both forms: ``NAME<sep>{...}`` and ``function<sep>NAME`` with a fenced block."""

    openers = Markers(ALL_BEGIN, CALL_BEGIN)
    markers = (ALL_BEGIN, ALL_END, CALL_BEGIN, CALL_END, SEPARATOR)
    trigger = ALL_BEGIN
    wrapper = (ALL_BEGIN, ALL_END)

    def read_calls(self, reader: Reader, tools: Tools, opener: str) -> Steps:
        yield from reader.space()
        if opener == ALL_BEGIN and not (yield from reader.literal(CALL_BEGIN)):
            return False
        while (yield from self._call(reader)):
            yield from reader.space()
            if not (yield from reader.literal(CALL_BEGIN)):
                return (yield from reader.literal(ALL_END))
            reader.begin_call(CALL_BEGIN)
        return False

    def _call(self, reader: Reader) -> Steps:
        """Reads one call behind its opening marker; False where it is none, or cut."""
        name = yield from reader.run(NAME)
        if not name or not (yield from reader.literal(SEPARATOR)):
            return False
        fenced = name == "function" and (yield from reader.peek()) not in ("{", "")
        if fenced:
            name = yield from reader.run(NAME)
            yield from reader.space()
            if not name or not (yield from reader.literal("```json")):
                return False
            yield from reader.space()
        reader.open_call(name)
        if not (yield from reader.json_value(reader.arguments)):
            return False
        reader.close_call()
        yield from reader.space()
        if fenced:
            yield from reader.literal("```")
            yield from reader.space()
        yield from reader.literal(CALL_END)
        return True


class DeepSeekFenced(DeepSeek):
    """V3 and R1."""

    name = "deepseek_fenced"
    separator = "\n"

    def tag(self, tool: ToolSpec, whitespace: int) -> Tag:
        return tags.tag(
            f"{CALL_BEGIN}function{SEPARATOR}{tool.name}\n```json\n",
            tags.arguments(tool.grammar, whitespace),
            f"\n```{CALL_END}",
        )


class DeepSeekPlain(DeepSeek):
    """V3.1."""

    name = "deepseek"

    def tag(self, tool: ToolSpec, whitespace: int) -> Tag:
        begin = f"{CALL_BEGIN}{tool.name}{SEPARATOR}"
        return tags.tag(begin, tags.arguments(tool.grammar, whitespace), CALL_END)
