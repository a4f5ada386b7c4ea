"""Responses: their one life from response.created to response.done, in the wire's order."""

from __future__ import annotations

from antiphon_gateway.domain.generation import Role
from antiphon_gateway.realtime import events, inputs, outputs, response_params
from antiphon_gateway.realtime.commands import (
    Close,
    ResponsePlan,
    SilenceLane,
    StartResponse,
    StopResponse,
)
from antiphon_gateway.realtime.conversation import Entry
from antiphon_gateway.realtime.errors import BackendFailure, ProtocolError
from antiphon_gateway.realtime.state import ActiveResponse, SessionState

MAX_PARALLEL = 4
DEFAULT_LANE = ""
RESTART_CLOSE_CODE = 1012


def create(state: SessionState, event: events.CreateResponse) -> None:
    """Starts the response that a client asked for.

    Raises:
        ProtocolError: one is active already, or a parameter is wrong.
    """
    params = response_params.parse(event.response)
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
    settings = response_params.snapshot(state.config, params)
    check_voice(state, settings.audio.output.voice, "response.audio.output.voice")
    history = response_params.input_entries(params, state.conversation)
    _begin(
        state,
        ActiveResponse(
            id=state.new_id("resp"),
            lane=DEFAULT_LANE,
            generation=0,
            settings=settings,
            in_conversation=params.in_conversation,
            history=history,
            metadata=params.metadata,
            awaits={entry.id for entry in history if entry.awaits_transcript},
            automatic=False,
        ),
    )


def answer_turn(state: SessionState, item_id: str, *, interrupts: bool) -> None:
    """Starts the response to a committed turn, now or after the active one."""
    if state.draining:
        return
    if state.active is not None:
        if not interrupts:
            state.reply_waits = item_id
            return
        cancel(state, state.active, "turn_detected")
    state.reply_waits = None
    history = list(state.conversation)
    _begin(
        state,
        ActiveResponse(
            id=state.new_id("resp"),
            lane=DEFAULT_LANE,
            generation=0,
            settings=state.config,
            in_conversation=True,
            history=history,
            metadata=None,
            awaits={entry.id for entry in history if entry.awaits_transcript},
            automatic=True,
            trigger=item_id,
        ),
    )


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
    state.generation_count += 1
    state.commands.append(SilenceLane(response.lane, state.generation_count))
    if response.message is not None and response.message.entry.playback is not None:
        response.message.entry.playback.interrupt(state.now)
    _finish(state, response, "cancelled", events.StatusDetails("cancelled", reason=reason))


def clear_output(state: SessionState, _event: events.ClearOutput) -> None:
    """Drops audio that waits to be sent; what is produced later is sent."""
    state.generation_count += 1
    state.commands.append(SilenceLane(DEFAULT_LANE, state.generation_count))
    if state.active is not None:
        state.active.generation = state.generation_count
        state.send(events.OutputCleared(response_id=state.active.id))


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


def prompt_accepted(state: SessionState, report: inputs.PromptAccepted) -> None:
    """Counts the prompt."""
    response = state.responses.get(report.response_id)
    if response is not None:
        response.prompt_tokens = report.prompt_tokens


def text_produced(state: SessionState, report: inputs.TextProduced) -> None:
    """Passes text on as transcript or as written output."""
    response = state.responses.get(report.response_id)
    if response is not None:
        response.output_tokens += report.token_count
        outputs.add_text(state, response, report.text)


def call_produced(state: SessionState, report: inputs.CallProduced) -> None:
    """Passes a piece of a tool call on."""
    response = state.responses.get(report.response_id)
    if response is not None:
        response.output_tokens += report.token_count
        outputs.add_call_piece(state, response, report)


def text_ended(state: SessionState, report: inputs.TextEnded) -> None:
    """Completes the calls; the voice may still speak."""
    response = state.responses.get(report.response_id)
    if response is None:
        return
    response.text_ended = True
    response.cut = report.cut
    response.usage = report.usage
    outputs.close_calls(state, response, "incomplete" if report.cut else "completed")


def audio_produced(state: SessionState, report: inputs.AudioProduced) -> None:
    """Passes audio on."""
    response = state.responses.get(report.response_id)
    if response is not None and report.data:
        outputs.add_audio(state, response, report.data, report.sample_count)


def spoken_up_to(state: SessionState, report: inputs.SpokenUpTo) -> None:
    """Notes which text belongs to which audio."""
    response = state.responses.get(report.response_id)
    if response is not None and response.message and response.message.entry.playback:
        response.message.entry.playback.mark(report.characters, report.sample)


def reply_ended(state: SessionState, report: inputs.ReplyEnded) -> None:
    """Closes a response that has run to its end."""
    response = state.responses.get(report.response_id)
    if response is None:
        return
    if response.cut:
        details = events.StatusDetails("incomplete", reason="max_output_tokens")
        _finish(state, response, "incomplete", details)
    else:
        _finish(state, response, "completed", None)


def reply_failed(state: SessionState, report: inputs.ReplyFailed) -> None:
    """Ends a response that a backend failed, or retries with less history."""
    response = state.responses.get(report.response_id)
    if response is None:
        return
    retryable = report.failure.code == "context_length_exceeded" and not response.outputs
    if retryable and response_params.shorten(response, report.limit, report.observed):
        _start(state, response)
        return
    _fail(state, response, report.failure)


def audio_sent(state: SessionState, report: inputs.AudioSent) -> None:
    """Counts audio that has left for the client."""
    entry = state.conversation.get(report.item_id)
    if entry is not None and entry.playback is not None:
        entry.playback.sent(report.sample_count, state.now)


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


def _begin(state: SessionState, response: ActiveResponse) -> None:
    state.generation_count += 1
    response.generation = state.generation_count
    if not response.in_conversation:
        response.lane = response.id
    else:
        state.active = response
    state.responses[response.id] = response
    created = outputs.describe(state, response, "in_progress", None)
    created.usage = None
    state.send(events.ResponseCreated(response=created))
    if not response.awaits:
        failed = next((entry for entry in response.history if _blocks(response, entry)), None)
        if failed is not None and failed.failure is not None:
            _fail(state, response, failed.failure)
        else:
            _start(state, response)


def _blocks(response: ActiveResponse, entry: Entry) -> bool:
    return entry.failure is not None and entry.id == response.trigger


def _start(state: SessionState, response: ActiveResponse) -> None:
    plan = response_params.plan(response)
    if response.automatic and not _has_question(state, response, plan):
        cancel(state, response, "turn_detected")
        return
    response.started = True
    state.commands.append(StartResponse(plan))


def _has_question(state: SessionState, response: ActiveResponse, plan: ResponsePlan) -> bool:
    """Whether a turn is worth an answer: noise is not, unless it broke into a question."""
    trigger = state.conversation.get(response.trigger or "")
    if trigger is None or trigger.transcript:
        return True
    return bool(plan.chat.messages) and plan.chat.messages[-1].role is Role.USER


def _fail(state: SessionState, response: ActiveResponse, failure: BackendFailure) -> None:
    error = events.StatusError(failure.kind, failure.code, failure.message)
    _finish(state, response, "failed", events.StatusDetails("failed", error=error))


def _finish(
    state: SessionState,
    response: ActiveResponse,
    status: str,
    details: events.StatusDetails | None,
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
        waiting, state.reply_waits = state.reply_waits, None
        if waiting is not None and waiting in state.conversation:
            answer_turn(state, waiting, interrupts=False)
    close_when_drained(state)
