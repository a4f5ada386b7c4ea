"""The reducer of a realtime session: (state, input, time) -> (state, commands).

It has no I/O and no clock, so the whole protocol runs in microseconds and every run can be
repeated. State is changed in place, since a conversation may hold thousands of items; nothing
else ever changes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antiphon_gateway.realtime import config as session_config
from antiphon_gateway.realtime import events, inputs, item_edits, responses, turns
from antiphon_gateway.realtime.commands import Close, Command
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
    preset: dict[str, Any] | None = None,
) -> SessionState:
    """The state of a session that is about to open.

    Args:
        token: random text, unique over all sessions.
        model: resolved model of the pipeline.
        settings: defaults and bounds.
        served: names that a configuration may use.
        wall_seconds: seconds since the epoch.
        preset: configuration sealed in a client secret.

    Raises:
        ProtocolError: the preset is wrong.
    """
    defaults = session_config.default_config(settings, model)
    current = session_config.merge(defaults, defaults, preset) if preset else defaults
    return SessionState(
        token=token,
        defaults=defaults,
        config=current,
        limits=settings,
        served=served,
        expires_at=wall_seconds + settings.max_session_seconds,
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
    commands, state.commands = state.commands, []
    return commands


def _opened(state: SessionState, _event: inputs.Opened) -> None:
    state.opened_at = state.last_client_event_at = state.now
    state.send(events.SessionCreated(session=_echo(state)))
    conversation = events.Conversation(id=state.conversation_id)
    state.send(events.ConversationCreated(conversation=conversation))


def _update(state: SessionState, event: events.SessionUpdate) -> None:
    before = state.config
    after = session_config.merge(before, state.defaults, event.session)
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
    state.config = after
    state.send(events.SessionUpdated(session=_echo(state)))
    turns.tune(state, before)


def _bad_frame(state: SessionState, event: inputs.BadFrame) -> None:
    state.last_client_event_at = state.now
    state.refuse(event.error, event.event_id)


def _tick(state: SessionState, _event: inputs.Tick) -> None:
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
    return session_config.echo(state.config, state.session_id, state.expires_at)


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
    events.ClearOutput: responses.clear_output,
}

_OTHER: dict[type, Handler] = {
    inputs.Opened: _opened,
    inputs.BadFrame: _bad_frame,
    inputs.SpeechBegan: turns.speech_began,
    inputs.SpeechEnded: turns.speech_ended,
    inputs.Transcript: turns.transcript,
    inputs.UtteranceFailed: turns.utterance_failed,
    inputs.RecognizerFailed: turns.recognizer_failed,
    inputs.ItemTranscribed: turns.item_transcribed,
    inputs.PromptAccepted: responses.prompt_accepted,
    inputs.TextProduced: responses.text_produced,
    inputs.CallProduced: responses.call_produced,
    inputs.TextEnded: responses.text_ended,
    inputs.AudioProduced: responses.audio_produced,
    inputs.SpokenUpTo: responses.spoken_up_to,
    inputs.ReplyEnded: responses.reply_ended,
    inputs.ReplyFailed: responses.reply_failed,
    inputs.AudioSent: responses.audio_sent,
    inputs.Tick: _tick,
    inputs.Drain: _drain,
}
