"""How the outputs of one request are read, and what the engine holds them to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from antiphon_core import metrics
from antiphon_core.errors import InvalidArgument

from antiphon_llm.front.constraints import checked_constraint
from antiphon_llm.front.model import TextModel
from antiphon_llm.front.parsing import tags
from antiphon_llm.front.parsing.base import Tools
from antiphon_llm.front.parsing.parser import OutputParser
from antiphon_llm.front.parsing.reasoning import Opening
from antiphon_llm.front.parsing.registry import OutputFormat
from antiphon_llm.front.parsing.tags import Tag
from antiphon_llm.front.requests import ChatInput, GenerationRequest
from antiphon_llm.front.tools import OfferedTools, ToolOptions, offered_tools
from antiphon_llm.messages import Constraint, Reasoning
from antiphon_llm.output_spec import OutputSpec


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """What one request's outputs are made of. The plain one is text and nothing else."""

    format: OutputFormat | None = None
    tools: Tools = field(default_factory=dict)
    opening: Opening = "closed"
    trace_openers: Sequence[str] = ()
    """Beginnings of calls that end a reasoning trace."""
    shown: frozenset[int] = frozenset()
    """Control tokens that the parser reads."""
    constraint: Constraint | None = None
    reasoning: Reasoning | None = None
    notes: Sequence[str] = ()
    speech: OutputSpec | None = None
    """Of a request that wants to hear the answer."""

    def parser(self) -> OutputParser | None:
        """A parser for one output; None where there is nothing to parse."""
        if self.format is None:
            return None
        return self.format.parser(self.tools, self.opening, trace_openers=self.trace_openers)


PLAIN = OutputPlan()


def plan_output(
    request: GenerationRequest, text: TextModel, opening: Opening, *, whitespace: int
) -> OutputPlan:
    """The plan of a request; takes up to a second for the largest schemas.

    Args:
        request: checked, but for its schemas.
        text: of the model.
        opening: where the rendered prompt lets the output begin.
        whitespace: most white space characters in a row in constrained JSON.

    Raises:
        InvalidArgument: a schema is refused, or the model cannot do what was asked.
    """
    plan = _plan_text(request, text, opening, whitespace=whitespace)
    if not request.output.wants_speech:
        return plan
    # Grammars know of text alone: they would bar every code.
    for field_name, bound in (("chat.tools", plan.tools), ("constraint", plan.constraint)):
        if bound:
            raise InvalidArgument(
                f"{field_name} is not served together with audio output; ask for text",
                reason="UNSUPPORTED_OPTION",
                field=field_name,
            )
    return replace(plan, speech=text.output)


def _plan_text(
    request: GenerationRequest, text: TextModel, opening: Opening, *, whitespace: int
) -> OutputPlan:
    """The plan as far as it concerns text; see ``plan_output``."""
    constraint, notes = None, ()
    if request.constraint is not None:
        checked = checked_constraint(request.constraint, whitespace)
        constraint, notes = checked.constraint, checked.notes
    if not isinstance(request.input, ChatInput):
        return OutputPlan(constraint=constraint, notes=notes)
    chat, form = request.input, text.format
    offered = offered_tools(chat.tools)
    # Some models call from inside their trace, without closing it.
    openers = text.opener_ids if offered.specs else {}
    reasoning = _reasoning(chat, text, opening, list(openers.values()))
    if not offered.specs and form.reasoning is None:
        return OutputPlan(constraint=constraint, notes=notes)
    return OutputPlan(
        format=form,
        tools={spec.name: spec for spec in offered.specs},
        opening=opening,
        trace_openers=tuple(openers),
        shown=text.marker_ids,
        constraint=_bound(chat.tools, offered, form, constraint, whitespace),
        reasoning=reasoning,
        notes=(*notes, *offered.notes, *_fallbacks(offered, text)),
    )


def _reasoning(
    chat: ChatInput, text: TextModel, opening: Opening, opener_ids: list[int]
) -> Reasoning | None:
    form, budget = text.format.reasoning, chat.thinking_budget
    if form is None or opening == "closed":
        if budget is not None:
            why = "the model does not reason" if form is None else "this prompt allows no reasoning"
            raise InvalidArgument(
                f"chat.thinking_budget is not served: {why}",
                reason="UNSUPPORTED_OPTION",
                field="chat.thinking_budget",
            )
        return None
    start, end = text.reasoning_ids
    return Reasoning(
        start_ids=list(start),
        end_ids=list(end),
        open=opening == "open",
        budget=-1 if budget is None else budget,
        opener_ids=opener_ids,
    )


def _bound(
    options: ToolOptions,
    offered: OfferedTools,
    form: OutputFormat,
    constraint: Constraint | None,
    whitespace: int,
) -> Constraint | None:
    """The constraint on the whole output: calls, the answer, or either."""
    if not offered.specs:
        if constraint is None or not form.calls.wraps_answers:
            return constraint
        return _structural(form, form.calls.answer(_answer(constraint, whitespace)))
    single = options.single_call or options.mode == "named"
    if options.mode in ("required", "named"):
        bound = form.calls.some(offered.specs, single=single, whitespace=whitespace)
    elif constraint is None:
        bound = form.calls.free(offered.specs, single=single, whitespace=whitespace)
    else:
        bound = tags.either(
            form.calls.some(offered.specs, single=single, whitespace=whitespace),
            form.calls.answer(_answer(constraint, whitespace)),
        )
    return _structural(form, bound)


def _structural(form: OutputFormat, bound: Tag) -> Constraint:
    if form.reasoning is not None and not form.reasoning.channels:
        # Models put breaks behind the trace.
        breaks = tags.optional(tags.of_constraint("regex", r"\n{1,2}", 1))
        bound = tags.sequence(breaks, bound)
    return Constraint(kind="structural_tag", source=tags.source(bound))


def _answer(constraint: Constraint, whitespace: int) -> Tag:
    """A constraint on the answer as part of a larger tag."""
    return tags.of_constraint(constraint.kind, constraint.source, whitespace)


def _fallbacks(offered: OfferedTools, text: TextModel) -> Sequence[str]:
    """What stands in for a template that knows no tools, counted."""
    template = text.template
    if not offered.specs or template is None:
        return ()
    if not template.reads_tools:
        metrics.fallback("tools", "template_without_tools")
        return ("the chat template knows no tools: they are described in the system message",)
    if not text.format.known:
        metrics.fallback("tools", "format_unknown")
        return (f"the format of the model's calls is not known: {text.format.calls.name} is read",)
    return ()
