"""Responses: their one life from response.created to response.done, in the wire's order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antiphon_gateway.domain.generation import Role
from antiphon_gateway.realtime import (
    compaction,
    events,
    inputs,
    outputs,
    phrases,
    playing,
    prompting,
    response_object,
    response_params,
    speculation,
)
from antiphon_gateway.realtime.commands import (
    Close,
    ReleaseResponse,
    ReportRateLimits,
    ResponsePlan,
    StartResponse,
    StopResponse,
)
from antiphon_gateway.realtime.conversation import Entry
from antiphon_gateway.realtime.errors import BackendFailure, ProtocolError
from antiphon_gateway.realtime.state import ActiveResponse, SessionState, Speculation

MAX_PARALLEL = 4
RESTART_CLOSE_CODE = 1012


def create(state: SessionState, event: events.CreateResponse) -> None:
    """Starts the response that a client asked for.

    Raises:
        ProtocolError: one is active already, or a parameter is wrong.
    """
    params = response_params.parse(event.response)
    _check_possible(state, params)
    settings = response_params.snapshot(state.config, params)
    check_voice(state, settings.audio.output.voice, "response.audio.output.voice")
    history = response_params.input_entries(params, state)
    _begin(
        state,
        ActiveResponse(
            id=state.new_id("resp"),
            lane=prompting.CONVERSATION_LANE,
            generation=0,
            settings=settings,
            in_conversation=params.in_conversation,
            history=history,
            metadata=params.metadata,
            awaits={entry.id for entry in history if entry.awaits_transcript},
            automatic=False,
            own_input=params.input is not None,
        ),
    )


def answer_silence(state: SessionState) -> None:
    """Has the model speak again to a user who says nothing."""
    if not state.draining and state.active is None:
        _begin(state, _to_conversation(state, None))


def interrupt(state: SessionState) -> None:
    """Ends the active response for the user's turn; the reply that waits for its end is dropped."""
    state.reply_waits = None
    if state.active is not None:
        cancel(state, state.active, "turn_detected")


def answer_turn(state: SessionState, item_id: str, *, interrupts: bool) -> None:
    """Starts the response to a committed turn, now or after the active one."""
    if state.draining:
        return
    if state.active is not None and not interrupts:
        state.reply_waits = item_id
        return
    interrupt(state)
    response = _to_conversation(state, item_id)
    prepared = None
    if state.speculation is not None and not response.awaits:
        prepared = speculation.take(state, _plan(state, response))
    if prepared is not None:
        response.id = prepared.plan.response_id
    _begin(state, response, prepared)


def cancel_by_client(state: SessionState, event: events.CancelResponse) -> None:
    """Ends the named response, or the active one.

    Raises:
        ProtocolError: it is not active; the socket stays up.
    """
    named = event.response_id
    response = state.active if named is None else state.responses.get(named)
    if response is None:
        raise ProtocolError(
            "Cancellation failed: no active response found",
            code="response_cancel_not_active",
            param="response_id" if event.response_id else "",
        )
    cancel(state, response, "client_cancelled")


def cancel(state: SessionState, response: ActiveResponse, reason: str) -> None:
    """Ends a response at once with its full closing order; backends are told, not awaited."""
    if response.in_conversation:
        playing.interrupt(state, response.message.entry if response.message else None)
    else:
        playing.silence(state, response.lane)
    _finish(state, response, "cancelled", response_object.StatusDetails("cancelled", reason=reason))


def transcript_came(state: SessionState, item_id: str) -> None:
    """Starts or fails the responses that waited for an item's transcript."""
    for response in list(state.responses.values()):
        if item_id not in response.awaits:
            continue
        response.awaits.discard(item_id)
        entry = state.conversation.get(item_id)
        if entry is not None and entry.failure is not None:
            _fail(state, response, entry.failure)
        elif not response.awaits:
            _start(state, response)


def report(state: SessionState, event: inputs.Report) -> None:
    """Takes what a running reply says; of one that is over, nothing counts."""
    held = state.speculation
    if held is not None and held.plan.response_id == event.response_id:
        speculation.hold(state, event)
        return
    response = state.responses.get(event.response_id)
    if response is not None:
        _REPORTS[type(event)](state, response, event)


def _prompt_accepted(
    state: SessionState, response: ActiveResponse, event: inputs.PromptAccepted
) -> None:
    response.prompt_tokens = event.prompt_tokens
    if response.in_conversation:
        prompting.count_prompt(state, response.prompt_characters, event.prompt_tokens)


def _text_produced(
    state: SessionState, response: ActiveResponse, event: inputs.TextProduced
) -> None:
    response.output_tokens += event.token_count
    outputs.add_text(state, response, event.text)


def _call_produced(
    state: SessionState, response: ActiveResponse, event: inputs.CallProduced
) -> None:
    response.output_tokens += event.token_count
    outputs.add_call_piece(state, response, event)


def _text_ended(state: SessionState, response: ActiveResponse, event: inputs.TextEnded) -> None:
    response.cut = event.cut
    response.usage = event.usage
    outputs.close_calls(state, response, "incomplete" if event.cut else "completed")
    if response.calls and not event.cut:
        phrases.acknowledge(state, response)


def _audio_produced(
    state: SessionState, response: ActiveResponse, event: inputs.AudioProduced
) -> None:
    if event.data and not response.muted:
        outputs.add_audio(state, response, event.data, event.sample_count)


def _spoken_up_to(_state: SessionState, response: ActiveResponse, event: inputs.SpokenUpTo) -> None:
    if response.message and response.message.entry.playback:
        response.message.entry.playback.mark(event.characters, event.sample)


def _reply_ended(state: SessionState, response: ActiveResponse, _event: inputs.ReplyEnded) -> None:
    if response.cut:
        details = response_object.StatusDetails("incomplete", reason="max_output_tokens")
        _finish(state, response, "incomplete", details)
    else:
        _finish(state, response, "completed", None)


def _reply_failed(state: SessionState, response: ActiveResponse, event: inputs.ReplyFailed) -> None:
    if event.failure.code == "context_length_exceeded" and not response.outputs:
        kept = prompting.shorten(response.settings, response.history, event.limit, event.observed)
        if len(kept) < len(response.history):
            response.history = kept
            if response.in_conversation and not response.own_input:
                prompting.drop_before(state, kept)
            _start(state, response)
            return
    _fail(state, response, event.failure)


def check_voice(state: SessionState, voice: str, path: str) -> None:
    """Refuses a voice that is not served.

    Raises:
        ProtocolError: ``voice_not_found``.
    """
    known = state.served.voices
    if voice and known and voice not in known:
        raise ProtocolError(
            f"{path}: voice {voice!r} is not served; available: {', '.join(sorted(known)[:20])}",
            code="voice_not_found",
            param=path,
        )


def close_when_drained(state: SessionState) -> None:
    """Closes a draining session that has nothing left to finish."""
    if state.draining and not state.responses and not state.closed:
        state.commands.append(Close(RESTART_CLOSE_CODE, "the service is shutting down"))
        state.closed = True


def _check_possible(state: SessionState, params: response_params.ResponseParams) -> None:
    if state.config.transcribes_only:
        raise ProtocolError(
            "a transcription session makes no responses; open a realtime session",
            code="response_not_supported",
        )
    if state.draining:
        raise ProtocolError(
            "the service is shutting down; reconnect", code="draining", kind="server_error"
        )
    if params.in_conversation and state.active is not None:
        raise ProtocolError(
            f"response {state.active.id} is active; wait for its response.done or cancel it",
            code="conversation_already_has_active_response",
        )
    parallel = sum(not response.in_conversation for response in state.responses.values())
    if not params.in_conversation and parallel >= MAX_PARALLEL:
        raise ProtocolError(
            f"{parallel} responses outside the conversation are running; at most "
            f"{MAX_PARALLEL} may",
            code="too_many_parallel_responses",
            param="response.conversation",
        )


def _to_conversation(state: SessionState, trigger: str | None) -> ActiveResponse:
    history = prompting.history(state)
    return ActiveResponse(
        id=state.new_id("resp"),
        lane=prompting.CONVERSATION_LANE,
        generation=0,
        settings=state.config,
        in_conversation=True,
        history=history,
        metadata=None,
        awaits={entry.id for entry in history if entry.awaits_transcript},
        automatic=trigger is not None,
        trigger=trigger,
    )


def _begin(
    state: SessionState, response: ActiveResponse, prepared: Speculation | None = None
) -> None:
    state.generation_count += 1
    response.generation = state.generation_count
    if not response.in_conversation:
        response.lane = response.id
    else:
        state.active = response
        state.idle_from = None
    state.responses[response.id] = response
    created = outputs.describe(state, response, "in_progress", None)
    created.usage = None
    state.send(events.ResponseCreated(response=created))
    state.commands.append(ReportRateLimits())
    if prepared is not None:
        _go_on(state, response, prepared)
    elif not response.awaits:
        failed = next((entry for entry in response.history if _blocks(response, entry)), None)
        if failed is not None and failed.failure is not None:
            _fail(state, response, failed.failure)
        else:
            _start(state, response)


def _go_on(state: SessionState, response: ActiveResponse, prepared: Speculation) -> None:
    response.started = True
    response.prompt_characters = outputs.prompt_characters(prepared.plan)
    state.commands.append(ReleaseResponse(response.id))
    for event in prepared.reports:
        report(state, event)


def _blocks(response: ActiveResponse, entry: Entry) -> bool:
    return entry.failure is not None and entry.id == response.trigger


def _plan(state: SessionState, response: ActiveResponse) -> ResponsePlan:
    return prompting.plan(
        state,
        response.id,
        response.settings,
        response.history,
        lane=response.lane,
        summarized=not response.own_input,
    )


def _start(state: SessionState, response: ActiveResponse) -> None:
    plan = _plan(state, response)
    if response.automatic and not _has_question(state, response, plan):
        cancel(state, response, "turn_detected")
        return
    response.started = True
    response.prompt_characters = outputs.prompt_characters(plan)
    state.commands.append(StartResponse(plan))


def _has_question(state: SessionState, response: ActiveResponse, plan: ResponsePlan) -> bool:
    """Whether a turn is worth an answer: noise is not, unless it broke into a question."""
    trigger = state.conversation.get(response.trigger or "")
    if trigger is None or trigger.transcript:
        return True
    return bool(plan.chat.messages) and plan.chat.messages[-1].role is Role.USER


def _fail(state: SessionState, response: ActiveResponse, failure: BackendFailure) -> None:
    error = response_object.StatusError(failure.kind, failure.code, failure.message)
    _finish(state, response, "failed", response_object.StatusDetails("failed", error=error))


def _finish(
    state: SessionState,
    response: ActiveResponse,
    status: str,
    details: response_object.StatusDetails | None,
) -> None:
    completed = status == "completed"
    if response.started and not completed:
        state.commands.append(StopResponse(response.id))
    outputs.close_calls(state, response, "completed" if completed else "incomplete")
    outputs.close_message(state, response, "completed" if completed else "incomplete")
    state.send(events.ResponseDone(response=outputs.describe(state, response, status, details)))
    del state.responses[response.id]
    if state.active is response:
        state.active = None
        if state.turn is None:
            playing.reply_ended(state)
        compaction.consider(state, response)
        waiting, state.reply_waits = state.reply_waits, None
        if waiting is not None and waiting in state.conversation:
            answer_turn(state, waiting, interrupts=False)
    close_when_drained(state)


_REPORTS: dict[type, Callable[[SessionState, ActiveResponse, Any], None]] = {
    inputs.PromptAccepted: _prompt_accepted,
    inputs.TextProduced: _text_produced,
    inputs.CallProduced: _call_produced,
    inputs.TextEnded: _text_ended,
    inputs.AudioProduced: _audio_produced,
    inputs.SpokenUpTo: _spoken_up_to,
    inputs.ReplyEnded: _reply_ended,
    inputs.ReplyFailed: _reply_failed,
}
