"""Summaries of old conversation: made behind the replies, used only if nothing changed."""

from __future__ import annotations

from antiphon_gateway.domain.generation import ChatInput, Message, Role
from antiphon_gateway.realtime import history as rendering
from antiphon_gateway.realtime import inputs, prompting
from antiphon_gateway.realtime.commands import CountFallback, Summarize
from antiphon_gateway.realtime.conversation import Entry
from antiphon_gateway.realtime.items import FunctionCallItem, FunctionCallOutputItem
from antiphon_gateway.realtime.state import ActiveResponse, SessionState

KEPT_SHARE = 0.4
"""Share of the text that stays as it is."""
LONGEST_SUMMARY_TOKENS = 256
FEWEST_ITEMS = 2

_TASK = (
    "Summarise the conversation below for the assistant who will continue it. Keep names, "
    "numbers, facts, decisions and open questions. Write a few plain sentences and nothing else."
)
_SPEAKERS = {Role.USER: "User", Role.ASSISTANT: "Assistant", Role.TOOL: "Tool result"}


def consider(state: SessionState, response: ActiveResponse) -> None:
    """Has old conversation summarised when the prompt of a reply came near the model's limit."""
    summary = state.summary
    threshold = state.limits.compaction_share * state.context_limit
    if not threshold or response.prompt_tokens < threshold or summary.wanted:
        return
    entries = prompting.history(state)
    head = _head(entries)
    if len(head) < FEWEST_ITEMS:
        return
    summary.made += 1
    summary.wanted = summary.made
    summary.head = _fingerprint(state, head)
    summary.covered = [entry.id for entry in head]
    text = _text(summary.text, head)
    state.commands.append(
        Summarize(
            number=summary.wanted,
            model=state.config.model,
            chat=ChatInput((Message(Role.SYSTEM, (_TASK,)), Message(Role.USER, (text,)))),
            max_tokens=min(LONGEST_SUMMARY_TOKENS, max(16, state.context_limit // 8)),
        )
    )


def summarized(state: SessionState, made: inputs.Summarized) -> None:
    """Puts the summary in the place of what it covers, if that is still as it was."""
    summary = state.summary
    if made.number != summary.wanted:
        return
    summary.wanted = 0
    covered, summary.covered = summary.covered, []
    head, summary.head = summary.head, ()
    text = made.text.strip()
    if not text:
        state.commands.append(CountFallback("compaction", "no_summary"))
        return
    entries = [entry for item_id in covered if (entry := state.conversation.get(item_id))]
    is_same = len(entries) == len(covered) and _fingerprint(state, entries) == head
    following = state.conversation.next_of(covered[-1]) if is_same else None
    if following is None:
        state.commands.append(CountFallback("compaction", "conversation_changed"))
        return
    summary.text = text
    state.history_start = following


def _head(entries: list[Entry]) -> list[Entry]:
    """The oldest entries that can be summarised: finished, and no call without its result."""
    kept = {entry.id for entry in rendering.newest_within(entries, KEPT_SHARE)}
    head: list[Entry] = []
    for entry in entries:
        if prompting.is_instruction(entry):
            continue
        if entry.id in kept or entry.awaits_transcript or entry.item.status == "in_progress":
            break
        head.append(entry)
    while head and _open_calls(head):
        head.pop()
    return head


def _open_calls(head: list[Entry]) -> bool:
    results = {e.item.call_id for e in head if isinstance(e.item, FunctionCallOutputItem)}
    return any(
        isinstance(entry.item, FunctionCallItem)
        and entry.item.status == "completed"
        and entry.item.call_id not in results
        for entry in head
    )


def _fingerprint(state: SessionState, head: list[Entry]) -> tuple[object, ...]:
    order = [entry.id for entry in state.conversation]
    start = order.index(state.history_start) if state.history_start in order else 0
    until = order.index(head[-1].id) + 1
    parts = [
        (entry.item, entry.transcript, entry.playback and entry.playback.heard_samples())
        for entry in head
    ]
    return (state.summary.text, tuple(order[start:until]), *parts)


def _text(before: str, head: list[Entry]) -> str:
    lines = [f"{prompting.SUMMARY_HEADING} {before}"] if before else []
    for message in rendering.render("", head):
        text = " ".join(part for part in message.parts if isinstance(part, str))
        calls = "; ".join(f"calls {call.name}({call.arguments})" for call in message.tool_calls)
        said = " ".join(piece for piece in (text, calls) if piece)
        lines.append(f"{_SPEAKERS.get(message.role, message.role)}: {said}")
    return "\n".join(lines)
