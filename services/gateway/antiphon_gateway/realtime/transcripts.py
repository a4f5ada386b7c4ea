"""Transcripts of user audio: pieces of utterances joined into the text of an item."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from antiphon_gateway.domain.recognition import RecognitionConfig, TranscriptSegment
from antiphon_gateway.realtime import events, inputs, responses, speculation
from antiphon_gateway.realtime.commands import CountFallback, TranscribeItem
from antiphon_gateway.realtime.conversation import Entry
from antiphon_gateway.realtime.errors import BackendFailure
from antiphon_gateway.realtime.formats import backend_format
from antiphon_gateway.realtime.items import InputAudio, MessageItem
from antiphon_gateway.realtime.state import PendingTranscript, SessionState


def partial(state: SessionState, heard: inputs.PartialText) -> None:
    """Shows the text of a committed item as far as it is certain; else keeps it."""
    if heard.epoch != state.epoch:
        return
    item_id = state.utterances.get(heard.utterance, "")
    pending = state.pending.get(item_id)
    if pending is not None:
        show_stable(state, item_id, heard.text)
    elif state.turn is not None:
        state.turn.stable = heard.text
    else:
        state.loose_stable = heard.text


def transcript(state: SessionState, heard: inputs.Transcript) -> None:
    """Adds a final transcript to the item that its utterance belongs to."""
    if heard.epoch != state.epoch:
        return
    state.recognizer_failures = 0
    text = heard.text.strip()
    segments = _at_session_time(state, heard.segments)
    item_id = heard.tag or state.utterances.pop(heard.utterance, "")
    pending = state.pending.get(item_id)
    turn = state.turn
    if pending is not None:
        if text:
            pending.pieces.append(text)
            pending.logprobs.extend(heard.logprobs)
            pending.segments.extend(segments)
        complete(state, item_id)
    elif turn is not None:
        turn.ended_utterances.add(heard.utterance)
        turn.stable = ""
        if text:
            turn.pieces.append(text)
            turn.logprobs.extend(heard.logprobs)
            turn.segments.extend(segments)
        speculation.begin(state, turn)
    elif text and not heard.tag:
        waiting = next(iter(state.pending.values()), None)
        (waiting.pieces if waiting else state.loose_pieces).append(text)
        (waiting.segments if waiting else state.loose_segments).extend(segments)
        state.loose_stable = ""


def utterance_failed(state: SessionState, heard: inputs.UtteranceFailed) -> None:
    """Reports that an item's speech could not be recognised."""
    if heard.epoch != state.epoch:
        return
    item_id = heard.tag or state.utterances.pop(heard.utterance, "")
    if item_id in state.pending:
        fail(state, item_id, heard.failure)
    elif state.turn is not None:
        state.turn.ended_utterances.add(heard.utterance)


def item_transcribed(state: SessionState, heard: inputs.ItemTranscribed) -> None:
    """Notes the text of audio that was recognised by itself."""
    pending = state.pending.get(heard.item_id)
    if pending is None:
        return
    if heard.failure is not None:
        fail(state, heard.item_id, heard.failure)
        return
    pending.pieces = [heard.text.strip()]
    pending.logprobs = list(heard.logprobs)
    pending.segments = list(heard.segments)
    complete(state, heard.item_id)


def recognize_item(state: SessionState, item_id: str, config: RecognitionConfig) -> None:
    """Has the kept audio of an item recognised by itself."""
    entry = state.conversation.get(item_id)
    if entry is None or not entry.audio:
        failure = BackendFailure("server_error", "internal_error", "the item's audio was dropped")
        fail(state, item_id, failure)
        return
    before = state.pending.get(item_id)
    shown = before.shown if before else ""
    state.pending[item_id] = PendingTranscript([], live=False, shown=shown)
    config = replace(config, format=backend_format(entry.form))
    state.commands.append(TranscribeItem(item_id, config, bytes(entry.audio)))


def show_stable(state: SessionState, item_id: str, text: str) -> None:
    """Sends what is new of a committed item's certain text."""
    pending = state.pending[item_id]
    whole = " ".join(piece for piece in (*pending.pieces, text.strip()) if piece)
    shows = state.config.audio.input.transcription is not None
    if shows and len(whole) > len(pending.shown) and whole.startswith(pending.shown):
        _send_delta(state, item_id, whole[len(pending.shown) :])
        pending.shown = whole


def complete(state: SessionState, item_id: str) -> None:
    """All of an item's text is known."""
    pending = state.pending.pop(item_id)
    entry = state.conversation.get(item_id)
    if entry is not None:
        text = " ".join(piece for piece in pending.pieces if piece)
        entry.transcript = text
        entry.awaits_transcript = False
        if pending.shown or state.config.audio.input.transcription is not None:
            _show(state, entry, pending, text)
    responses.transcript_came(state, item_id)


def fail(state: SessionState, item_id: str, failure: BackendFailure) -> None:
    """An item's text will never be known."""
    pending = state.pending.pop(item_id, None)
    entry = state.conversation.get(item_id)
    if entry is not None:
        entry.awaits_transcript = False
        entry.failure = failure
        shown = pending is not None and pending.shown
        if shown or state.config.audio.input.transcription is not None:
            error = events.TranscriptionError(failure.kind, failure.code, failure.message)
            state.send(events.TranscriptionFailed(item_id=item_id, content_index=0, error=error))
    responses.transcript_came(state, item_id)


def _show(state: SessionState, entry: Entry, pending: PendingTranscript, text: str) -> None:
    if not text.startswith(pending.shown):
        # Deltas cannot be taken back; the words that follow them are still right.
        state.commands.append(CountFallback("transcript_deltas", "final_differs"))
        words = text.split()[len(pending.shown.split()) :]
        text = " ".join((pending.shown, *words))
    item = entry.item
    assert isinstance(item, MessageItem)
    index = next(i for i, part in enumerate(item.content) if isinstance(part, InputAudio))
    content = list(item.content)
    content[index] = InputAudio(transcript=text)
    entry.item = replace(item, content=content)
    if len(text) > len(pending.shown):
        _send_delta(state, entry.id, text[len(pending.shown) :], index)
    if state.config.diarizes:
        _send_segments(state, entry.id, pending, index)
    state.send(
        events.TranscriptionCompleted(
            item_id=entry.id,
            content_index=index,
            transcript=text,
            usage=events.DurationUsage(seconds=round(entry.audio_seconds, 3)),
            logprobs=pending.logprobs if state.config.include else UNSET,
        )
    )


def _send_delta(state: SessionState, item_id: str, text: str, index: int = 0) -> None:
    state.send(events.TranscriptionDelta(item_id=item_id, content_index=index, delta=text))


def _send_segments(
    state: SessionState, item_id: str, pending: PendingTranscript, index: int
) -> None:
    for segment in pending.segments:
        if text := segment.text.strip():
            state.send(
                events.TranscriptionSegment(
                    id=state.new_id("seg"),
                    item_id=item_id,
                    content_index=index,
                    text=text,
                    speaker=segment.speaker,
                    start=max(0, segment.start_ms - pending.start_ms) / 1000,
                    end=max(0, segment.end_ms - pending.start_ms) / 1000,
                )
            )


def _at_session_time(
    state: SessionState, segments: Sequence[TranscriptSegment]
) -> list[TranscriptSegment]:
    """Segments of the present recogniser stream, which began later than the session."""
    origin = state.epoch_start_ms
    return [
        replace(segment, start_ms=origin + segment.start_ms, end_ms=origin + segment.end_ms)
        for segment in segments
    ]
