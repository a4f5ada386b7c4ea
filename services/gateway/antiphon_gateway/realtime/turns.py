"""Input audio, turns and transcripts: from appended bytes to user items."""

from __future__ import annotations

from msgspec.structs import replace

from antiphon_gateway.domain.recognition import RecognitionConfig, TurnMode
from antiphon_gateway.domain.recognition import TurnDetection as BackendDetection
from antiphon_gateway.realtime import events, inputs, responses
from antiphon_gateway.realtime.commands import (
    Close,
    FlushRecognizer,
    OpenRecognizer,
    RecognizeAudio,
    TranscribeItem,
    TuneRecognizer,
)
from antiphon_gateway.realtime.config import (
    ServerVad,
    SessionConfig,
    TurnDetection,
    backend_format,
    silence_ms,
)
from antiphon_gateway.realtime.conversation import Entry
from antiphon_gateway.realtime.errors import BackendFailure, ProtocolError
from antiphon_gateway.realtime.input_audio import TRIM_MARGIN_MS
from antiphon_gateway.realtime.items import InputAudio, MessageItem
from antiphon_gateway.realtime.state import OpenTurn, PendingTranscript, SessionState

SHORTEST_COMMIT_MS = 100
LONGEST_UNCOMMITTED_MS = 600_000
SEMANTIC_PREFIX_MS = 300
MAX_RECOGNIZER_FAILURES = 5
FIRST_REOPEN_DELAY = 0.2


def append(state: SessionState, event: events.AppendAudio) -> None:
    """Takes audio in."""
    state.buffer.append(event.audio)
    if state.recognizer_open:
        state.commands.append(RecognizeAudio(event.audio))
    else:
        open_recognizer(state)
    detection = state.config.audio.input.turn_detection
    if detection is not None and state.turn is None:
        state.buffer.trim(_prefix_ms(detection) + TRIM_MARGIN_MS)
    if state.buffer.held_ms >= LONGEST_UNCOMMITTED_MS:
        _commit_by_flush(state)


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
    _commit_by_flush(state)


def clear(state: SessionState, _event: events.ClearAudio) -> None:
    """Drops buffered audio and all turn state."""
    state.buffer.clear()
    reopen_recognizer(state)
    state.send(events.AudioCleared())


def speech_began(state: SessionState, heard: inputs.SpeechBegan) -> None:
    """Opens a turn and interrupts the reply."""
    detection = state.config.audio.input.turn_detection
    if heard.epoch != state.epoch or detection is None:
        return
    state.recognizer_failures = 0
    if state.turn is not None:
        return
    start_ms = state.epoch_start_ms + heard.at_ms
    state.turn = OpenTurn(state.new_id("item"), start_ms)
    state.send(events.SpeechStarted(audio_start_ms=start_ms, item_id=state.turn.item_id))
    if detection.interrupt_response and state.active is not None:
        responses.cancel(state, state.active, "turn_detected")


def speech_ended(state: SessionState, heard: inputs.SpeechEnded) -> None:
    """Closes the turn, commits its audio and answers it."""
    detection = state.config.audio.input.turn_detection
    turn = state.turn
    if heard.epoch != state.epoch or detection is None or turn is None:
        return
    end_ms = min(max(state.epoch_start_ms + heard.at_ms, turn.start_ms), state.buffer.end_ms)
    state.turn = None
    state.send(events.SpeechStopped(audio_end_ms=end_ms, item_id=turn.item_id))
    audio = state.buffer.take(turn.start_ms, end_ms)
    pending = PendingTranscript(turn.pieces, heard.utterance)
    entry = _commit_item(state, turn.item_id, audio, pending)
    entry.audio_seconds = (end_ms - turn.start_ms) / 1000
    state.utterances[heard.utterance] = turn.item_id
    if detection.create_response:
        responses.answer_turn(state, entry.id, interrupts=detection.interrupt_response)
    if heard.utterance in turn.ended_utterances:
        _complete(state, entry.id)


def transcript(state: SessionState, heard: inputs.Transcript) -> None:
    """Adds a final transcript to the item that its utterance belongs to."""
    if heard.epoch != state.epoch:
        return
    state.recognizer_failures = 0
    text = heard.text.strip()
    item_id = heard.tag or state.utterances.pop(heard.utterance, "")
    pending = state.pending.get(item_id)
    if pending is not None:
        if text:
            pending.pieces.append(text)
        _complete(state, item_id)
    elif state.turn is not None:
        state.turn.ended_utterances.add(heard.utterance)
        if text:
            state.turn.pieces.append(text)
    elif text and not heard.tag:
        waiting = next(iter(state.pending.values()), None)
        (waiting.pieces if waiting else state.loose_pieces).append(text)


def utterance_failed(state: SessionState, heard: inputs.UtteranceFailed) -> None:
    """Reports that an item's speech could not be recognised."""
    if heard.epoch != state.epoch:
        return
    item_id = heard.tag or state.utterances.pop(heard.utterance, "")
    if item_id in state.pending:
        _fail(state, item_id, heard.failure)
    elif state.turn is not None:
        state.turn.ended_utterances.add(heard.utterance)


def item_transcribed(state: SessionState, heard: inputs.ItemTranscribed) -> None:
    """Notes the text of a created item's audio."""
    pending = state.pending.get(heard.item_id)
    if pending is None:
        return
    if heard.failure is not None:
        _fail(state, heard.item_id, heard.failure)
        return
    pending.pieces = [heard.text.strip()]
    _complete(state, heard.item_id)


def recognizer_failed(state: SessionState, heard: inputs.RecognizerFailed) -> None:
    """Opens another stream, or gives up."""
    if heard.epoch != state.epoch:
        return
    if heard.idle:
        state.recognizer_open = False
        state.turn = None
        return
    state.recognizer_failures += 1
    if state.recognizer_failures >= MAX_RECOGNIZER_FAILURES:
        error = ProtocolError(
            f"speech recognition is not available: {heard.failure.message}",
            code=heard.failure.code,
            kind="server_error",
        )
        state.refuse(error, None)
        state.commands.append(Close(1011, "speech recognition is not available"))
        state.closed = True
        return
    open_recognizer(state, delay=FIRST_REOPEN_DELAY * 2 ** (state.recognizer_failures - 1))


def reopen_recognizer(state: SessionState) -> None:
    """Replaces the stream if there is one; text-only sessions never open any."""
    if state.recognizer_open:
        open_recognizer(state)


def open_recognizer(state: SessionState, delay: float = 0.0) -> None:
    """Replaces the recogniser stream; what is buffered is heard again, an open turn ends silently.

    Items that still wait for their transcript are recognised anew from their own audio.
    """
    state.epoch += 1
    state.recognizer_open = True
    state.turn = None
    state.utterances.clear()
    state.loose_pieces.clear()
    state.epoch_start_ms = state.buffer.start_ms
    state.commands.append(
        OpenRecognizer(
            epoch=state.epoch,
            config=_recognition(state.config),
            replay=state.buffer.content(),
            delay=delay,
        )
    )
    for item_id, pending in list(state.pending.items()):
        if pending.live:
            transcribe(state, item_id)


def transcribe(state: SessionState, item_id: str) -> None:
    """Has the kept audio of an item recognised by itself."""
    entry = state.conversation.get(item_id)
    if entry is None or not entry.audio:
        failure = BackendFailure("server_error", "internal_error", "the item's audio was dropped")
        _fail(state, item_id, failure)
        return
    state.pending[item_id] = PendingTranscript([], None, live=False)
    config = replace(
        _recognition(state.config, BackendDetection(mode=TurnMode.NONE)),
        format=backend_format(entry.form),
    )
    state.commands.append(TranscribeItem(item_id, config, bytes(entry.audio)))


def tune(state: SessionState, before: SessionConfig) -> None:
    """Applies a changed configuration to the input side."""
    old, new = before.audio.input, state.config.audio.input
    if old.format != new.format:
        state.buffer.change_format(new.format)
        reopen_recognizer(state)
    elif (old.turn_detection is None) != (new.turn_detection is None) or (
        _hints(before) != _hints(state.config)
    ):
        reopen_recognizer(state)
    elif (
        state.recognizer_open
        and new.turn_detection is not None
        and _detection(old.turn_detection) != _detection(new.turn_detection)
    ):
        state.commands.append(TuneRecognizer(_detection(new.turn_detection)))


def _commit_by_flush(state: SessionState) -> None:
    turn = state.turn
    item_id = turn.item_id if turn else state.new_id("item")
    pieces = [*state.loose_pieces, *(turn.pieces if turn else ())]
    state.turn = None
    state.loose_pieces.clear()
    _commit_item(state, item_id, state.buffer.take_all(), PendingTranscript(pieces, None))
    state.commands.append(FlushRecognizer(item_id))


def _commit_item(
    state: SessionState, item_id: str, audio: bytes, pending: PendingTranscript
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
    state.send(events.ItemAdded(previous_item_id=previous, item=entry.item))
    state.send(events.ItemDone(previous_item_id=previous, item=entry.item))
    return entry


def _complete(state: SessionState, item_id: str) -> None:
    pending = state.pending.pop(item_id)
    entry = state.conversation.get(item_id)
    if entry is not None:
        text = " ".join(piece for piece in pending.pieces if piece)
        entry.transcript = text
        entry.awaits_transcript = False
        if state.config.audio.input.transcription is not None:
            _show_transcript(state, entry, text)
    responses.transcript_came(state, item_id)


def _show_transcript(state: SessionState, entry: Entry, text: str) -> None:
    item = entry.item
    assert isinstance(item, MessageItem)
    index = next(i for i, part in enumerate(item.content) if isinstance(part, InputAudio))
    content = list(item.content)
    content[index] = InputAudio(transcript=text)
    entry.item = replace(item, content=content)
    if text:
        state.send(events.TranscriptionDelta(item_id=entry.id, content_index=index, delta=text))
    state.send(
        events.TranscriptionCompleted(
            item_id=entry.id,
            content_index=index,
            transcript=text,
            usage=events.DurationUsage(seconds=round(entry.audio_seconds, 3)),
        )
    )


def _fail(state: SessionState, item_id: str, failure: BackendFailure) -> None:
    state.pending.pop(item_id, None)
    entry = state.conversation.get(item_id)
    if entry is not None:
        entry.awaits_transcript = False
        entry.failure = failure
        if state.config.audio.input.transcription is not None:
            error = events.TranscriptionError(failure.kind, failure.code, failure.message)
            state.send(events.TranscriptionFailed(item_id=item_id, content_index=0, error=error))
    responses.transcript_came(state, item_id)


def _prefix_ms(detection: TurnDetection) -> int:
    return detection.prefix_padding_ms if isinstance(detection, ServerVad) else SEMANTIC_PREFIX_MS


def _detection(detection: TurnDetection | None) -> BackendDetection:
    if detection is None:
        return BackendDetection(mode=TurnMode.NONE)
    return BackendDetection(
        mode=TurnMode.SERVER_VAD,
        threshold=detection.threshold if isinstance(detection, ServerVad) else None,
        silence_ms=silence_ms(detection),
        prefix_ms=_prefix_ms(detection),
    )


def _hints(config: SessionConfig) -> tuple[str, str, str]:
    transcription = config.audio.input.transcription
    if transcription is None:
        return ("", "", "")
    return (
        transcription.model or "",
        transcription.language or "",
        transcription.prompt or "",
    )


def _recognition(
    config: SessionConfig, detection: BackendDetection | None = None
) -> RecognitionConfig:
    model, language, prompt = _hints(config)
    return RecognitionConfig(
        model=model,
        format=backend_format(config.audio.input.format),
        language=language,
        prompt=prompt,
        turn_detection=detection or _detection(config.audio.input.turn_detection),
    )
