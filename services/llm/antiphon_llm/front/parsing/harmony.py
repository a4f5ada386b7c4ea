"""The channels of the gpt-oss models: analysis is reasoning, commentary calls, final answers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from antiphon_llm.front.parsing import tags
from antiphon_llm.front.parsing.base import CallFormat, Tools, ToolSpec
from antiphon_llm.front.parsing.reader import CallTooLong, Markers, Reader, Steps, TextSteps
from antiphon_llm.front.parsing.tags import Tag

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"
_BEGINS = Markers(START, CHANNEL)
_ENDS = Markers(END, CALL, RETURN, START, CHANNEL)
_HEADER = re.compile(r"[^<]*")
_RECIPIENT = re.compile(r"to=functions\.([A-Za-z0-9_.\-]+)")
_NEXT = f"{START}assistant"


class Harmony(CallFormat):
    """``<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>``.

    A message is a header with a channel and perhaps a recipient, then its body. The model ends
    its turn behind a call, so that an output has one at most.
    """

    name = "harmony"
    wraps_answers = True
    markers = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)

    def read(self, reader: Reader, tools: Tools) -> Steps:
        """Reads messages, the first of which continues the prompt's header."""
        opener = yield from reader.any_of(_BEGINS)
        while opener in _BEGINS.texts or (yield from reader.peek()):
            reader.begin_call(opener if opener in _BEGINS.texts else "")
            try:
                state = yield from self._header(reader, tools, opener)
                if state == "call":
                    yield from self._arguments(reader)
                    state = "content"
            except CallTooLong:
                state = "content"
                if reader.call_is_open:
                    reader.close_call()
            reader.end_call(announced=opener in _BEGINS.texts)
            reader.state = state
            emit = reader.thought if state == "reasoning" else reader.content
            opener = yield from reader.until(_ENDS, emit)
        return True

    def _header(self, reader: Reader, tools: Tools, opener: str) -> TextSteps:
        """Reads a message's header; returns what its body is. Without a header it is content."""
        reader.state = "content"
        role = ""
        if opener != CHANNEL:
            yield from reader.literal(START)
            role = yield from reader.run(_HEADER)
            if not (yield from reader.literal(CHANNEL)):
                return "content"
        channel = yield from reader.run(_HEADER)
        if (yield from reader.literal(CONSTRAIN)):
            yield from reader.run(_HEADER)
        if not (yield from reader.literal(MESSAGE)):
            return "content"
        recipient = _RECIPIENT.search(f"{role} {channel}")
        if recipient and tools:
            reader.open_call(recipient[1])
            return "call"
        reader.drop_record()
        return "reasoning" if channel.split()[:1] == ["analysis"] else "content"

    def _arguments(self, reader: Reader) -> Steps:
        reader.state = "call"
        yield from reader.space()
        if (yield from reader.json_value(reader.arguments)):
            reader.close_call()
            yield from reader.space()
        elif (yield from reader.peek()):
            reader.close_call()  # Malformed: what follows is no part of it.
        return True

    def some(self, tools: Sequence[ToolSpec], *, single: bool, whitespace: int) -> Tag:
        """One call; the model's end token follows it."""
        return tags.sequence(
            *_TRACES, tags.either(*(self._tag(tool, whitespace) for tool in tools))
        )

    def free(self, tools: Sequence[ToolSpec], *, single: bool, whitespace: int) -> Tag:
        """Preambles, then a call or an answer."""
        calls = [self._tag(tool, whitespace) for tool in tools]
        return tags.sequence(
            *_TRACES, tags.star(_PREAMBLE), tags.either(*calls, _final(tags.any_text(START)))
        )

    def answer(self, content: Tag) -> Tag:
        return tags.sequence(*_TRACES, _final(content))

    def _tag(self, tool: ToolSpec, whitespace: int) -> Tag:
        header = f"{CHANNEL}commentary to=functions.{tool.name} {CONSTRAIN}json{MESSAGE}"
        return tags.tag(header, tags.arguments(tool.grammar, whitespace), "")


_TRACES = (
    # The engine takes a trace from its opening marker to its end out of what a grammar sees.
    tags.optional(tags.text(ANALYSIS)),
    tags.optional(tags.text(_NEXT)),
)
_PREAMBLE = tags.tag(f"{CHANNEL}commentary{MESSAGE}", tags.any_text(END, START), f"{END}{_NEXT}")


def _final(content: Tag) -> Tag:
    return tags.sequence(tags.text(f"{CHANNEL}final{MESSAGE}"), content)
