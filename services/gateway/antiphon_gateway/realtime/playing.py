"""What the client is playing: estimated from what was sent, ended by an interruption."""

from __future__ import annotations

from antiphon_gateway.realtime import events, inputs
from antiphon_gateway.realtime.commands import SilenceLane
from antiphon_gateway.realtime.config import ServerVad
from antiphon_gateway.realtime.conversation import Entry
from antiphon_gateway.realtime.prompting import CONVERSATION_LANE
from antiphon_gateway.realtime.state import ActiveResponse, SessionState

ROUNDING_SECONDS = 1e-6


def audio_sent(state: SessionState, report: inputs.AudioSent) -> None:
    """Counts audio that has left for the client."""
    entry = state.conversation.get(report.item_id)
    if entry is None or entry.playback is None:
        return
    playback = entry.playback
    seconds = report.sample_count / playback.sample_rate
    left = state.unsent_seconds - seconds
    state.unsent_seconds = left if left > ROUNDING_SECONDS else 0.0
    state.play_end = playback.sent(report.sample_count, state.now, state.play_end)


def interrupt(state: SessionState, writing: Entry | None = None) -> int:
    """The listener cut off what is playing: what he cannot have heard never reaches the model.

    Args:
        state: of the session.
        writing: the item of a reply that ends with it.

    Returns:
        The generation of the conversation's audio from now on.
    """
    cut = [entry for entry in state.playing if _plays(entry, state.now)]
    if writing is not None:
        cut.append(writing)
    for entry in cut:
        if entry.playback is not None:
            entry.playback.interrupt(state.now)
    state.playing.clear()
    state.play_end = state.now
    state.unsent_seconds = 0.0
    _stop_sounding(state, events.OutputCleared)
    return silence(state, CONVERSATION_LANE)


def is_playing(state: SessionState) -> bool:
    """Whether the client can be playing audio, or is about to."""
    return state.unsent_seconds > 0 or state.play_end > state.now


def silence(state: SessionState, lane: str) -> int:
    """Drops a lane's queued audio.

    Returns:
        The lane's generation from now on.
    """
    state.generation_count += 1
    state.commands.append(SilenceLane(lane, state.generation_count))
    return state.generation_count


def clear_output(state: SessionState, _event: events.ClearOutput) -> None:
    """Ends the audio of the active reply and drops what waits; its text goes on."""
    response = state.active
    message = response.message.entry if response is not None and response.message else None
    state.sounding = None
    generation = interrupt(state, message)
    if response is not None:
        response.generation = generation
        response.muted = True
    state.send(events.OutputCleared(response_id=state.last_response_id))


def sounds(state: SessionState, response: ActiveResponse, entry: Entry, samples: int) -> None:
    """Audio of an item is about to be queued."""
    if not response.in_conversation or entry.playback is None:
        return
    entry.playback.queued_samples += samples
    state.unsent_seconds += samples / entry.playback.sample_rate
    if not state.playing or state.playing[-1] is not entry:
        state.playing = [item for item in state.playing if _plays(item, state.now)]
        state.playing.append(entry)
    state.last_response_id = response.id
    if state.sounding != response.id and _wants(state, events.OutputStarted):
        _stop_sounding(state, events.OutputStopped)
        state.sounding = response.id
        state.send(events.OutputStarted(response_id=response.id))


def reply_ended(state: SessionState) -> None:
    """Starts waiting for the user, once the reply has been played."""
    state.idle_from = state.now + max(0.0, state.play_end - state.now) + state.unsent_seconds


def idle_due(state: SessionState) -> float | None:
    """When the user has been silent for too long; None while that does not matter."""
    detection = state.config.audio.input.turn_detection
    if (
        state.idle_from is None
        or not isinstance(detection, ServerVad)
        or detection.idle_timeout_ms is None
        or state.config.transcribes_only
        or state.turn is not None
        or state.active is not None
    ):
        return None
    return state.idle_from + detection.idle_timeout_ms / 1000


def stop_due(state: SessionState) -> float | None:
    """When output_audio_buffer.stopped is to be sent; None while nothing is to be."""
    if state.sounding is None or state.sounding in state.responses or state.unsent_seconds > 0:
        return None
    return state.play_end


def stopped(state: SessionState) -> None:
    """All audio has been played."""
    _stop_sounding(state, events.OutputStopped)


def _stop_sounding(
    state: SessionState, event: type[events.OutputStopped | events.OutputCleared]
) -> None:
    response_id, state.sounding = state.sounding, None
    if response_id is not None and _wants(state, event):
        state.send(event(response_id=response_id))


def _wants(state: SessionState, event: type[events.ServerEvent]) -> bool:
    return event.__struct_config__.tag in state.config.optional_events


def _plays(entry: Entry, now: float) -> bool:
    return entry.playback is not None and entry.playback.plays(now)
