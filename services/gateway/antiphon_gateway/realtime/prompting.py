"""What the model is shown: the part of the conversation that prompts hold, and the plan."""

from __future__ import annotations

import json

from antiphon_gateway.domain.generation import ChatInput, Sampling, Tool, ToolMode
from antiphon_gateway.domain.generation import ToolChoice as BackendChoice
from antiphon_gateway.domain.speech import SpeechConfig
from antiphon_gateway.realtime import history as rendering
from antiphon_gateway.realtime.commands import ResponsePlan
from antiphon_gateway.realtime.config import FunctionTool, NamedTool, SessionConfig
from antiphon_gateway.realtime.conversation import Entry
from antiphon_gateway.realtime.formats import backend_format
from antiphon_gateway.realtime.items import MessageItem
from antiphon_gateway.realtime.state import SessionState

CONVERSATION_LANE = ""
SUMMARY_HEADING = "Earlier in this conversation:"
RETAINED = 0.8
"""Share of the history that stays when it has to shrink and the client named none."""


def history(state: SessionState) -> list[Entry]:
    """The conversation as prompts show it, shortened to the client's bound.

    Messages of the system stay whatever is dropped: they are instructions.
    """
    entries = _after(state, state.history_start)
    bound = _history_bound(state)
    size = _tokens(state, entries)
    if bound and size > bound:
        retained = rendering.newest_within(entries, _retained(state.config) * bound / size)
        drop_before(state, retained)
        entries = _after(state, state.history_start)
    return entries


def drop_before(state: SessionState, kept: list[Entry]) -> None:
    """Prompts begin with the first kept entry that is no instruction, from now on."""
    first = next((entry for entry in kept if not is_instruction(entry)), None)
    if first is not None and first.id in state.conversation:
        state.history_start = first.id


def is_instruction(entry: Entry) -> bool:
    """Whether an entry is a message of the system."""
    return isinstance(entry.item, MessageItem) and entry.item.role == "system"


def forget_item(state: SessionState, item_id: str) -> None:
    """An item is about to leave the conversation: prompts begin after it if they began with it."""
    if state.history_start == item_id:
        state.history_start = state.conversation.next_of(item_id)


def shorten(
    settings: SessionConfig, entries: list[Entry], limit: int, observed: int
) -> list[Entry]:
    """The newest part of a history whose prompt was too long.

    Args:
        settings: of the response.
        entries: oldest first.
        limit: context limit in tokens.
        observed: tokens of the refused prompt.

    Returns:
        What is kept; all of it where nothing may or can be dropped.
    """
    if settings.truncation == "disabled" or len(entries) < 2 or observed <= 0:
        return entries
    share = min(0.95, limit / observed) * _retained(settings)
    return rendering.newest_within(entries, share)


def plan(
    state: SessionState,
    response_id: str,
    settings: SessionConfig,
    entries: list[Entry],
    *,
    lane: str = CONVERSATION_LANE,
    summarized: bool = True,
    held: bool = False,
) -> ResponsePlan:
    """Everything that a reply runs on.

    Args:
        state: of the session.
        response_id: of the reply.
        settings: snapshot of the configuration.
        entries: the history that it reads.
        lane: queue of its audio.
        summarized: whether the summary of older conversation belongs before the history.
        held: whether it is only prepared.
    """
    form = backend_format(settings.audio.output.format)
    limit = settings.max_output_tokens
    speech = speech_of(settings) if settings.output_modalities == ["audio"] else None
    instructions = settings.instructions
    if summarized and state.summary.text:
        instructions = f"{instructions}\n\n{SUMMARY_HEADING} {state.summary.text}".strip()
    return ResponsePlan(
        response_id=response_id,
        model=settings.model,
        chat=ChatInput(
            messages=rendering.render(instructions, entries),
            tools=[_tool(tool) for tool in settings.tools],
            tool_choice=_choice(settings) if settings.tools else None,
            reasoning_effort=(settings.reasoning and settings.reasoning.effort) or "",
        ),
        sampling=Sampling(temperature=settings.temperature),
        max_tokens=limit if isinstance(limit, int) else None,
        speech=speech,
        output_format=form,
        lane=lane,
        audio_lead=settings.audio_lead_ms / 1000,
        held=held,
    )


def speech_of(settings: SessionConfig) -> SpeechConfig:
    """How the session's voice speaks."""
    output = settings.audio.output
    return SpeechConfig(
        voice=output.voice, output_format=backend_format(output.format), speed=output.speed
    )


def count_prompt(state: SessionState, characters: int, tokens: int) -> None:
    """Learns how long a token is, from a prompt that was accepted."""
    if characters > 0:
        state.tokens_per_character = tokens / characters


def _after(state: SessionState, start: str | None) -> list[Entry]:
    entries = [entry for entry in state.conversation if entry.in_prompt]
    if start is None:
        return entries
    kept: list[Entry] = []
    begun = False
    for entry in entries:
        begun = begun or entry.id == start
        if begun or is_instruction(entry):
            kept.append(entry)
    return kept


def _history_bound(state: SessionState) -> int:
    truncation = state.config.truncation
    if isinstance(truncation, str) or truncation.token_limits is None:
        return 0
    return truncation.token_limits.post_instructions or 0


def _retained(config: SessionConfig) -> float:
    truncation = config.truncation
    return RETAINED if isinstance(truncation, str) else truncation.retention_ratio


def _tokens(state: SessionState, entries: list[Entry]) -> float:
    if not state.tokens_per_character:
        return 0.0
    return rendering.characters(rendering.render("", entries)) * state.tokens_per_character


def _tool(tool: FunctionTool) -> Tool:
    parameters = json.dumps(tool.parameters) if tool.parameters else ""
    return Tool(name=tool.name, description=tool.description or "", parameters=parameters)


def _choice(settings: SessionConfig) -> BackendChoice:
    choice = settings.tool_choice
    single = not settings.parallel_tool_calls
    if isinstance(choice, NamedTool):
        return BackendChoice(ToolMode.NAMED, name=choice.name, single_call=single)
    return BackendChoice(ToolMode(choice), single_call=single)
