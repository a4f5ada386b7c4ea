"""The reducer of a realtime session: (state, input, time) -> (state, commands).

It has no I/O and no clock, so the whole protocol runs in microseconds and every run can be
repeated. State is changed in place, since a conversation may hold thousands of items; nothing
else ever changes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from antiphon_gateway.realtime import (
    compaction,
    config_merge,
    events,
    hearing,
    inputs,
    item_edits,
    phrases,
    playing,
    responses,
    transcripts,
    turns,
)
from antiphon_gateway.realtime.commands import Close, Command
from antiphon_gateway.realtime.config import SessionConfig, SessionType
from antiphon_gateway.realtime.conversation import MAX_ITEMS
from antiphon_gateway.realtime.errors import ProtocolError
from antiphon_gateway.realtime.settings import RealtimeSettings
from antiphon_gateway.realtime.state import Served, SessionState

NORMAL_CLOSE_CODE = 1000


def new_state(
    *,
    token: str,
    model: str,
    settings: RealtimeSettings,
    served: Served,
    wall_seconds: int,
    kind: SessionType = "realtime",
    preset: dict[str, Any] | None = None,
    context_limit: int = 0,
) -> SessionState:
    """The state of a session that is about to open.

    Args:
        token: random text, unique over all sessions.
        model: resolved model of the pipeline; of a transcription session, the recogniser.
        settings: defaults and bounds.
        served: names that a configuration may use.
        wall_seconds: seconds since the epoch.
        kind: whether it converses or transcribes.
        preset: configuration sealed in a client secret.
        context_limit: tokens of the model's context; 0 where unknown.

    Raises:
        ProtocolError: the preset is wrong.
    """
    defaults = config_merge.default_config(settings, model, kind)
    current = config_merge.merge(defaults, defaults, preset) if preset else defaults
    phrases.check(current)
    _check_diarization(served, current)
    return SessionState(
        token=token,
        defaults=defaults,
        config=current,
        limits=settings,
        served=served,
        expires_at=wall_seconds + settings.max_session_seconds,
        context_limit=context_limit,
    )


def step(state: SessionState, event: inputs.Input, now: float) -> list[Command]:
    """Carries one input out.

    Args:
        state: changed in place.
        event: what happened.
        now: monotonic seconds; never decreases.

    Returns:
        What the connection has to do, in order. Empty once the session is closed.
    """
    if state.closed:
        return []
    state.now = now
    handler = _CLIENT.get(type(event))
    if handler is None:
        _OTHER[type(event)](state, event)
    else:
        state.last_client_event_at = now
        try:
            handler(state, event)
        except ProtocolError as error:
            state.refuse(error, getattr(event, "event_id", None))
    if len(state.conversation) > MAX_ITEMS:
        item_edits.bound(state)
    commands, state.commands = state.commands, []
    return commands


def deadline(state: SessionState) -> float | None:
    """When a Tick is due at the latest because of what the session waits for; None for nothing."""
    turn = state.turn
    if turn is None and state.idle_from is None and state.sounding is None:
        return None
    pause = turn.ends_at if turn is not None and turn.paused_at_ms is not None else None
    if pause is not None and pause <= state.now:
        pause = None
    dues = [due for due in (pause, playing.idle_due(state), playing.stop_due(state)) if due]
    return min(dues) if dues else None


def _opened(state: SessionState, _event: inputs.Opened) -> None:
    state.opened_at = state.last_client_event_at = state.now
    state.send(events.SessionCreated(session=_echo(state)))
    conversation = events.Conversation(id=state.conversation_id)
    state.send(events.ConversationCreated(conversation=conversation))
    phrases.prepare(state)


def _update(state: SessionState, event: events.SessionUpdate) -> None:
    before, defaults = state.config, state.defaults
    kind = config_merge.type_of(event.session, before.type)
    if kind != before.type and _is_fresh(state):
        defaults = config_merge.default_config(state.limits, "", kind)
        after = config_merge.merge(defaults, defaults, event.session)
    else:
        after = config_merge.merge(before, defaults, event.session, state.served.own_names)
    _check(state, before, after)
    state.config, state.defaults = after, defaults
    state.send(events.SessionUpdated(session=_echo(state)))
    hearing.tune(state, before)
    phrases.prepare(state)


def _is_fresh(state: SessionState) -> bool:
    """Whether nothing has happened that another type of session would not have allowed."""
    return not (len(state.conversation) or state.buffer.received or state.responses)


def _check(state: SessionState, before: SessionConfig, after: SessionConfig) -> None:
    voice = after.audio.output.voice
    if voice != before.audio.output.voice:
        if state.voice_fixed:
            raise ProtocolError(
                "the voice cannot be changed after the first audio of the session",
                code="cannot_update_voice",
                param="session.audio.output.voice",
            )
        responses.check_voice(state, voice, "session.audio.output.voice")
    transcription = after.audio.input.transcription
    known = state.served.recognizers
    if transcription and transcription.model and known and transcription.model not in known:
        raise ProtocolError(
            f"session.audio.input.transcription.model {transcription.model!r} is not served; "
            f"available: {', '.join(sorted(known))}",
            code="model_not_found",
            param="session.audio.input.transcription.model",
        )
    _check_diarization(state.served, after)
    phrases.check(after)


def _check_diarization(served: Served, config: SessionConfig) -> None:
    transcription = config.audio.input.transcription
    name = (transcription.model if transcription else None) or ""
    if config.diarizes and name in served.undiarized:
        raise ProtocolError(
            f"recogniser {name or 'default'!r} does not say who speaks",
            code="unsupported_parameter",
            param="session.audio.input.transcription.model",
        )


def _bad_frame(state: SessionState, event: inputs.BadFrame) -> None:
    state.last_client_event_at = state.now
    state.refuse(event.error, event.event_id)


def _rate_limits(state: SessionState, event: inputs.RateLimitsKnown) -> None:
    state.send(events.RateLimitsUpdated(rate_limits=list(event.limits)))


def _tick(state: SessionState, event: inputs.Tick) -> None:
    state.load = event.load
    turns.end_pause(state)
    stop_due, idle_due = playing.stop_due(state), playing.idle_due(state)
    if stop_due is not None and state.now >= stop_due:
        playing.stopped(state)
    if idle_due is not None and state.now >= idle_due:
        turns.idle_timeout(state)
    if state.now - state.opened_at >= state.limits.max_session_seconds:
        error = ProtocolError(
            f"the session has reached its longest duration of {state.limits.max_session_seconds} s",
            code="session_expired",
        )
        state.refuse(error, None)
        _close(state, NORMAL_CLOSE_CODE, "session expired")
    elif state.now - state.last_client_event_at >= state.limits.input_idle_seconds:
        _close(state, NORMAL_CLOSE_CODE, "no input")


def _drain(state: SessionState, _event: inputs.Drain) -> None:
    state.draining = True
    state.reply_waits = None
    responses.close_when_drained(state)


def _close(state: SessionState, code: int, reason: str) -> None:
    state.commands.append(Close(code, reason))
    state.closed = True


def _echo(state: SessionState) -> dict[str, Any]:
    return config_merge.echo(state.config, state.session_id, state.expires_at)


Handler = Callable[[SessionState, Any], None]

_CLIENT: dict[type, Handler] = {
    events.SessionUpdate: _update,
    events.AppendAudio: turns.append,
    events.CommitAudio: turns.commit,
    events.ClearAudio: turns.clear,
    events.CreateItem: item_edits.create,
    events.DeleteItem: item_edits.delete,
    events.RetrieveItem: item_edits.retrieve,
    events.TruncateItem: item_edits.truncate,
    events.CreateResponse: responses.create,
    events.CancelResponse: responses.cancel_by_client,
    events.ClearOutput: playing.clear_output,
}

_OTHER: dict[type, Handler] = {
    inputs.Opened: _opened,
    inputs.BadFrame: _bad_frame,
    inputs.SpeechBegan: turns.speech_began,
    inputs.SpeechEnded: turns.speech_ended,
    inputs.PartialText: transcripts.partial,
    inputs.Transcript: transcripts.transcript,
    inputs.UtteranceFailed: transcripts.utterance_failed,
    inputs.RecognizerFailed: hearing.recognizer_failed,
    inputs.ItemTranscribed: transcripts.item_transcribed,
    **dict.fromkeys(get_args(inputs.Report), responses.report),
    inputs.AudioSent: playing.audio_sent,
    inputs.RateLimitsKnown: _rate_limits,
    inputs.Summarized: compaction.summarized,
    inputs.PhraseReady: phrases.ready,
    inputs.Tick: _tick,
    inputs.Drain: _drain,
}
