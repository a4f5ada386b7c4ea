"""Replies that are prepared in a pause, before it is known to end the turn.

The recogniser is told to end utterances at a short silence; the turn itself ends at the
configured one. What is prepared between the two runs on a snapshot and is held: it is used if
the turn ends on exactly what it was prepared on, and dropped without any event otherwise.
"""

from __future__ import annotations

from msgspec.structs import replace

from antiphon_gateway.realtime import inputs, prompting
from antiphon_gateway.realtime.commands import (
    CountSpeculation,
    ResponsePlan,
    StartResponse,
    StopResponse,
)
from antiphon_gateway.realtime.config import ServerVad, SessionConfig
from antiphon_gateway.realtime.conversation import Entry
from antiphon_gateway.realtime.items import InputAudio, MessageItem
from antiphon_gateway.realtime.state import OpenTurn, SessionState, Speculation

MAX_PER_TURN = 3
MAX_LOAD = 0.8
SHORTEST_GAIN_MS = 50


def pause_ms(config: SessionConfig) -> int:
    """Silence after which an utterance is over though its turn is not; 0 where they are one."""
    detection = config.audio.input.turn_detection
    early = config.speculative_ms
    if config.transcribes_only or early is None or not isinstance(detection, ServerVad):
        return 0
    if not detection.create_response or early + SHORTEST_GAIN_MS > detection.silence_duration_ms:
        return 0
    return early


def begin(state: SessionState, turn: OpenTurn) -> None:
    """Prepares the reply to a paused turn whose text is known, where that is worth its cost."""
    text = " ".join(turn.pieces)
    if (
        turn.paused_at_ms is None
        or turn.paused_utterance not in turn.ended_utterances
        or not text
        or state.speculation is not None
        or state.active is not None
        or state.draining
        or turn.speculations >= MAX_PER_TURN
        or state.load > MAX_LOAD
    ):
        return
    turn.speculations += 1
    said = Entry(MessageItem(id=turn.item_id, role="user", content=[InputAudio()]), transcript=text)
    history = [*prompting.history(state), said]
    if any(entry.awaits_transcript for entry in history):
        return
    plan = prompting.plan(state, state.new_id("resp"), state.config, history, held=True)
    state.speculation = Speculation(plan)
    state.commands.append(StartResponse(plan))


def hold(state: SessionState, report: inputs.Report) -> None:
    """Keeps what the backends say about the prepared reply."""
    held = state.speculation
    assert held is not None
    if isinstance(report, inputs.ReplyFailed):
        drop(state)
        return
    held.reports.append(report)
    if isinstance(report, inputs.TextProduced | inputs.CallProduced):
        held.token_count += report.token_count


def take(state: SessionState, plan: ResponsePlan) -> Speculation | None:
    """The prepared reply, if it is what ``plan`` asks for."""
    held = state.speculation
    if held is None or replace(plan, response_id=held.plan.response_id, held=True) != held.plan:
        return None
    state.speculation = None
    state.commands.append(CountSpeculation("used", held.token_count))
    return held


def drop(state: SessionState) -> None:
    """Ends the prepared reply, if there is one; nobody hears of it."""
    held, state.speculation = state.speculation, None
    if held is not None:
        state.commands.append(StopResponse(held.plan.response_id))
        state.commands.append(CountSpeculation("dropped", held.token_count))
