"""Reasoning traces: what opens and closes them, and where an output begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from antiphon_llm.front.parsing.reader import Markers, Reader, Steps

Opening = Literal["open", "closed", "possible"]
"""Whether an output begins inside a trace, behind one, or where the model may open one."""


@dataclass(frozen=True)
class ReasoningFormat:
    """The markers round a trace."""

    name: str
    start: str
    end: str
    channels: bool = False
    """The trace is one of several channels, which the family of calls reads."""

    def opening(self, rendered: str) -> Opening:
        """Where the output begins that follows a rendered prompt.

        Args:
            rendered: the template's text, with guards in what people wrote.
        """
        tail = rendered.rstrip()
        if tail.endswith(self.start.rstrip()):
            return "open"
        return "closed" if tail.endswith(self.end) else "possible"


THINK = ReasoningFormat("think", "<think>", "</think>")
MISTRAL_THINK = ReasoningFormat("mistral_think", "[THINK]", "[/THINK]")
GEMMA_THOUGHT = ReasoningFormat("gemma_thought", "<|channel>thought\n", "<channel|>")
HARMONY = ReasoningFormat("harmony", "<|channel|>analysis<|message|>", "<|end|>", channels=True)


def read_trace(
    reader: Reader, form: ReasoningFormat, opening: Opening, openers: Sequence[str]
) -> Steps:
    """Reads the trace with which an output begins, if it does; unclosed, it is all of it.

    Args:
        openers: beginnings of calls that close a trace, too, and are left to be read.
    """
    if opening == "closed":
        return False
    if opening == "possible":
        gap = yield from reader.space()
        if not (yield from reader.literal(form.start)):
            reader.content(gap)
            return False
    reader.state = "reasoning"
    yield from reader.space()
    end = yield from reader.until(Markers(form.end, *openers), reader.thought)
    if not end:
        return True
    if end != form.end:
        reader.unread(end)
    reader.state = "content"
    yield from reader.space()
    return True
