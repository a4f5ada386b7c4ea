"""The known formats, and which of them a model writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_llm.front.parsing import reasoning
from antiphon_llm.front.parsing.base import CallFormat, Tools, read_text
from antiphon_llm.front.parsing.deepseek import DeepSeekFenced, DeepSeekPlain
from antiphon_llm.front.parsing.gemma import FunctionGemma, Gemma4
from antiphon_llm.front.parsing.harmony import Harmony
from antiphon_llm.front.parsing.json_calls import (
    BracketArray,
    JsonInTags,
    LlamaJson,
    MistralList,
    MistralNamed,
    TaggedArray,
)
from antiphon_llm.front.parsing.parser import OutputParser
from antiphon_llm.front.parsing.pythonic import GemmaToolCode, LlamaList
from antiphon_llm.front.parsing.reader import Reader, Steps
from antiphon_llm.front.parsing.reasoning import Opening, ReasoningFormat, read_trace
from antiphon_llm.front.parsing.xml_calls import ArgumentXml, FunctionXml

CALL_FORMATS: dict[str, CallFormat] = {
    format.name: format
    for format in (
        JsonInTags(),
        FunctionXml(),
        ArgumentXml(),
        BracketArray(),
        TaggedArray(),
        MistralList(),
        MistralNamed(),
        LlamaJson(),
        LlamaList(),
        GemmaToolCode(),
        FunctionGemma(),
        Gemma4(),
        Harmony(),
        DeepSeekFenced(),
        DeepSeekPlain(),
    )
}
REASONING_FORMATS: dict[str, ReasoningFormat] = {
    format.name: format
    for format in (
        reasoning.THINK,
        reasoning.MISTRAL_THINK,
        reasoning.GEMMA_THOUGHT,
        reasoning.HARMONY,
    )
}

_CALL_SIGNS = (
    (("<|channel|>", "<|message|>"), "harmony"),
    (("<｜tool▁calls▁begin｜>", "```json"), "deepseek_fenced"),
    (("<｜tool▁calls▁begin｜>",), "deepseek"),
    (("[TOOL_CALLS]", "[ARGS]"), "mistral_named"),
    (("[TOOL_CALLS]",), "mistral_list"),
    (("<start_function_call>",), "function_gemma"),
    (("<|tool_call>",), "gemma4"),
    (("<arg_key>",), "argument_xml"),
    (("<function=",), "function_xml"),
    (("<|tool_call|>",), "tagged_array"),
    (("<tool_call>",), "json_tags"),
    (("<|python_start|>",), "llama_list"),
    (("[func_name1(",), "llama_list"),
    (("<|python_tag|>",), "llama_json"),
    (('"parameters": ',), "llama_json"),
    (("tool_code",), "gemma_tool_code"),
)
"""Texts that stand in a template together, the telling ones first."""
_REASONING_SIGNS = (
    ("<|channel|>analysis", "harmony"),
    ("<|channel>thought", "gemma_thought"),
    ("[THINK]", "mistral_think"),
    ("<think>", "think"),
    ("</think>", "think"),
)


@dataclass(frozen=True)
class OutputFormat:
    """What a model's output is made of."""

    calls: CallFormat
    reasoning: ReasoningFormat | None
    known: bool
    """Whether the template or the configuration named the format of calls."""

    def markers(self) -> tuple[str, ...]:
        """Strings that must reach the parser as text, control tokens or not."""
        form = self.reasoning
        trace = (form.start, form.end) if form is not None and not form.channels else ()
        return (*self.calls.markers, *trace)

    def parser(
        self,
        tools: Tools,
        opening: Opening = "closed",
        *,
        trace_openers: Sequence[str] = (),
        reader: Reader | None = None,
    ) -> OutputParser:
        """A parser for one output.

        Args:
            tools: offered, by name; without any, text that looks like a call is content.
            opening: where the output begins.
            trace_openers: beginnings of calls that end a reasoning trace.
            reader: another than a fresh one with the usual limits.
        """
        reader = reader or Reader()
        return OutputParser(reader, self._steps(reader, tools, opening, trace_openers))

    def _steps(
        self, reader: Reader, tools: Tools, opening: Opening, openers: Sequence[str]
    ) -> Steps:
        form = self.reasoning
        if form is not None and form.channels:
            return (yield from self.calls.read(reader, tools))
        if form is not None:
            yield from read_trace(reader, form, opening, openers)
        return (yield from (self.calls.read(reader, tools) if tools else read_text(reader)))


def choose(template: str, *, tool_parser: str = "", reasoning_parser: str = "") -> OutputFormat:
    """The format of a model with this chat template.

    Args:
        template: its text; empty for none.
        tool_parser: a name of ``CALL_FORMATS`` that overrides what the template tells.
        reasoning_parser: a name of ``REASONING_FORMATS``, or ``none``.

    Raises:
        KeyError: an unknown name; the settings allow none.
    """
    name = tool_parser or next(
        (name for signs, name in _CALL_SIGNS if all(sign in template for sign in signs)), ""
    )
    trace = reasoning_parser or next(
        (name for sign, name in _REASONING_SIGNS if sign in template), "none"
    )
    if name == "harmony" and not reasoning_parser:
        trace = "harmony"
    return OutputFormat(
        calls=CALL_FORMATS[name or JsonInTags.name],
        reasoning=None if trace == "none" else REASONING_FORMATS[trace],
        known=bool(name),
    )
