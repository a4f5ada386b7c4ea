"""Input audio and turns: from appended bytes to user items."""

from __future__ import annotations

from antiphon_gateway.realtime import events, hearing, inputs, playing, responses, speculation
from antiphon_gateway.realtime import transcripts as texts
from antiphon_gateway.realtime.commands import CountTurn, FlushRecognizer, RecognizeAudio
from antiphon_gateway.realtime.config import ServerVad
from antiphon_gateway.realtime.conversation import Entry
from antiphon_gateway.realtime.errors import ProtocolError
from antiphon_gateway.realtime.input_audio import TRIM_MARGIN_MS
from antiphon_gateway.realtime.items import InputAudio, MessageItem
from antiphon_gateway.realtime.state import OpenTurn, PendingTranscript, SessionState

SHORTEST_COMMIT_MS = 100
LONGEST_UNCOMMITTED_MS = 600_000


def append(state: SessionState, event: events.AppendAudio) -> None:
    """Takes audio in."""
    state.buffer.append(event.audio)
    if state.recognizer_open:
        state.commands.append(RecognizeAudio(event.audio))
    else:
        hearing.open_recognizer(state)
    detection = state.config.audio.input.turn_detection
    if detection is not None:
        if state.turn is None:
            state.buffer.trim(hearing.prefix_ms(detection) + TRIM_MARGIN_MS)
        elif state.turn.paused_at_ms is not None:
            end_pause(state)
    if state.buffer.held_ms >= LONGEST_UNCOMMITTED_MS:
        _commit_by_flush(state, "forced")


def commit(state: SessionState, _event: events.CommitAudio) -> None:
    """Makes a user item of all buffered audio.

    Raises:
        ProtocolError: less than 100 ms is buffered.
    """
    held = state.buffer.held_ms
    if held < SHORTEST_COMMIT_MS:
        raise ProtocolError(
            f"the input audio buffer holds {held} ms of audio; a commit needs at least "
            f"{SHORTEST_COMMIT_MS} ms",
            code="input_audio_buffer_commit_empty",
        )
    _commit_by_flush(state, "manual")


def clear(state: SessionState, _event: events.ClearAudio) -> None:
    """Drops buffered audio and all turn state."""
    state.buffer.clear()
    hearing.forget_turn(state)
    hearing.reopen_recognizer(state)
    state.send(events.AudioCleared())


def speech_began(state: SessionState, heard: inputs.SpeechBegan) -> None:
    """Opens a turn and interrupts the reply; after a short pause, goes on with the turn."""
    detection = state.config.audio.input.turn_detection
    if heard.epoch != state.epoch or detection is None:
        return
    state.recognizer_failures = 0
    turn = state.turn
    if turn is not None:
        if turn.paused_at_ms is not None:
            turn.paused_at_ms = None
            speculation.drop(state)
        return
    start_ms = state.epoch_start_ms + heard.at_ms
    state.turn = OpenTurn(state.new_id("item"), start_ms)
    state.idle_from = None
    state.send(events.SpeechStarted(audio_start_ms=start_ms, item_id=state.turn.item_id))
    if detection.interrupt_response:
        responses.interrupt(state)
        if playing.is_playing(state):
            playing.interrupt(state)


def speech_ended(state: SessionState, heard: inputs.SpeechEnded) -> None:
    """Ends the turn, or notes a pause that ends it unless speech goes on."""
    turn = state.turn
    if heard.epoch != state.epoch or turn is None:
        return
    if state.config.audio.input.turn_detection is None or turn.paused_at_ms is not None:
        return
    end_ms = min(max(state.epoch_start_ms + heard.at_ms, turn.start_ms), state.buffer.end_ms)
    turn.paused_at_ms, turn.paused_utterance = end_ms, heard.utterance
    pause_ms = speculation.pause_ms(state.config)
    if not pause_ms:
        _end_turn(state, turn, end_ms, forced=heard.forced)
        return
    turn.ends_at = state.now + (state.config.silence_ms - pause_ms) / 1000
    speculation.begin(state, turn)


def end_pause(state: SessionState) -> None:
    """Ends a turn whose pause has lasted long enough, by the clock and in the audio."""
    turn = state.turn
    if turn is None or turn.paused_at_ms is None or state.now < turn.ends_at:
        return
    if state.buffer.end_ms - turn.paused_at_ms >= state.config.silence_ms:
        _end_turn(state, turn, turn.paused_at_ms)


def idle_timeout(state: SessionState) -> None:
    """Commits the silence since the last reply and has the model speak again."""
    detection = state.config.audio.input.turn_detection
    state.idle_from = None
    if not isinstance(detection, ServerVad) or detection.idle_timeout_ms is None:
        return
    end_ms = state.buffer.end_ms
    start_ms = max(0, end_ms - detection.idle_timeout_ms)
    item_id = state.new_id("item")
    state.send(
        events.TimeoutTriggered(audio_start_ms=start_ms, audio_end_ms=end_ms, item_id=item_id)
    )
    audio = state.buffer.take(start_ms, end_ms)
    entry = _commit_item(state, item_id, audio, PendingTranscript([]), "idle")
    entry.is_silence = True
    texts.complete(state, item_id)
    responses.answer_silence(state)


def _end_turn(state: SessionState, turn: OpenTurn, end_ms: int, *, forced: bool = False) -> None:
    detection = state.config.audio.input.turn_detection
    assert detection is not None
    utterance = turn.paused_utterance
    state.turn = None
    state.send(events.SpeechStopped(audio_end_ms=end_ms, item_id=turn.item_id))
    audio = state.buffer.take(turn.start_ms, end_ms)
    pending = PendingTranscript(
        turn.pieces, logprobs=turn.logprobs, segments=turn.segments, start_ms=turn.start_ms
    )
    kind = "server_vad" if isinstance(detection, ServerVad) else "semantic_vad"
    if forced:
        kind = "semantic_vad_longest_silence"
    entry = _commit_item(state, turn.item_id, audio, pending, kind)
    entry.audio_seconds = (end_ms - turn.start_ms) / 1000
    if utterance in turn.ended_utterances:
        texts.complete(state, entry.id)
    else:
        state.utterances[utterance] = turn.item_id
        texts.show_stable(state, entry.id, turn.stable)
    if detection.create_response and not state.config.transcribes_only:
        responses.answer_turn(state, entry.id, interrupts=detection.interrupt_response)
    speculation.drop(state)


def _commit_by_flush(state: SessionState, kind: str) -> None:
    if not state.recognizer_open:
        # It ended for want of audio; the next one hears what is buffered.
        hearing.open_recognizer(state)
    turn = state.turn
    item_id = turn.item_id if turn else state.new_id("item")
    pieces = [*state.loose_pieces, *(turn.pieces if turn else ())]
    stable = turn.stable if turn else state.loose_stable
    hearing.forget_turn(state)
    pending = PendingTranscript(
        pieces,
        logprobs=turn.logprobs if turn else [],
        segments=[*state.loose_segments, *(turn.segments if turn else ())],
        start_ms=state.buffer.start_ms,
    )
    state.loose_pieces.clear()
    state.loose_segments.clear()
    state.loose_stable = ""
    state.idle_from = None
    _commit_item(state, item_id, state.buffer.take_all(), pending, kind)
    texts.show_stable(state, item_id, stable)
    state.commands.append(FlushRecognizer(item_id))


def _commit_item(
    state: SessionState, item_id: str, audio: bytes, pending: PendingTranscript, kind: str
) -> Entry:
    previous = state.conversation.last_id
    state.send(events.AudioCommitted(previous_item_id=previous, item_id=item_id))
    entry = Entry(
        MessageItem(id=item_id, role="user", content=[InputAudio()]),
        awaits_transcript=True,
        form=state.buffer.form,
        audio=bytearray(audio),
        audio_seconds=len(audio) / state.buffer.byte_rate,
    )
    state.conversation.insert(entry, None)
    state.pending[item_id] = pending
    state.announce(previous, entry.item)
    state.send(events.ItemDone(previous_item_id=previous, item=entry.item))
    state.commands.append(CountTurn(kind))
    return entry
