"""The recogniser stream of a session: opened, tuned, replaced and given up."""

from __future__ import annotations

from msgspec.structs import replace

from antiphon_gateway.domain.recognition import Diarization, RecognitionConfig, TurnMode
from antiphon_gateway.domain.recognition import TurnDetection as BackendDetection
from antiphon_gateway.realtime import inputs, speculation, transcripts
from antiphon_gateway.realtime.commands import Close, OpenRecognizer, TuneRecognizer
from antiphon_gateway.realtime.config import SemanticVad, ServerVad, SessionConfig, TurnDetection
from antiphon_gateway.realtime.errors import ProtocolError
from antiphon_gateway.realtime.formats import backend_format
from antiphon_gateway.realtime.state import SessionState

SEMANTIC_PREFIX_MS = 300
MAX_RECOGNIZER_FAILURES = 5
FIRST_REOPEN_DELAY = 0.2
QUOTA_CODE = "insufficient_quota"
POLICY_CLOSE_CODE = 1008
DEFECT_CLOSE_CODE = 1011


def recognizer_failed(state: SessionState, heard: inputs.RecognizerFailed) -> None:
    """Opens another stream, or gives up."""
    if heard.epoch != state.epoch:
        return
    if heard.idle:
        state.recognizer_open = False
        forget_turn(state)
        # A commit may have crossed its end.
        _recognize_pending(state)
        return
    state.recognizer_failures += 1
    spent = heard.failure.code == QUOTA_CODE
    if spent or state.recognizer_failures >= MAX_RECOGNIZER_FAILURES:
        error = ProtocolError(
            f"speech recognition is not available: {heard.failure.message}",
            code=heard.failure.code,
            kind=heard.failure.kind if spent else "server_error",
        )
        state.refuse(error, None)
        code = POLICY_CLOSE_CODE if spent else DEFECT_CLOSE_CODE
        state.commands.append(Close(code, "speech recognition is not available"))
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
    forget_turn(state)
    state.utterances.clear()
    state.loose_pieces.clear()
    state.loose_segments.clear()
    state.loose_stable = ""
    state.epoch_start_ms = state.buffer.start_ms
    state.commands.append(
        OpenRecognizer(
            epoch=state.epoch,
            config=recognition(state.config),
            replay=state.buffer.content(),
            delay=delay,
        )
    )
    _recognize_pending(state)


def _recognize_pending(state: SessionState) -> None:
    """Has what the former stream has not said recognised from the items' own audio."""
    for item_id, pending in list(state.pending.items()):
        if pending.live:
            transcribe_item(state, item_id)


def transcribe_item(state: SessionState, item_id: str) -> None:
    """Has the kept audio of an item recognised by itself."""
    transcripts.recognize_item(state, item_id, _alone(state.config))


def forget_turn(state: SessionState) -> None:
    """Ends an open turn without any event."""
    state.turn = None
    speculation.drop(state)


def tune(state: SessionState, before: SessionConfig) -> None:
    """Applies a changed configuration to the input side."""
    old, new = before.audio.input, state.config.audio.input
    if old.format != new.format:
        state.buffer.change_format(new.format)
        reopen_recognizer(state)
    elif (old.turn_detection is None) != (new.turn_detection is None) or (
        _heard(before) != _heard(state.config)
    ):
        reopen_recognizer(state)
    elif state.recognizer_open and new.turn_detection is not None:
        detection = _detection(state.config)
        if _detection(before) != detection:
            state.commands.append(TuneRecognizer(detection))


def prefix_ms(detection: TurnDetection) -> int:
    """Audio before the detected start that belongs to a turn."""
    return detection.prefix_padding_ms if isinstance(detection, ServerVad) else SEMANTIC_PREFIX_MS


def recognition(
    config: SessionConfig, detection: BackendDetection | None = None
) -> RecognitionConfig:
    """The recogniser's configuration."""
    return replace(
        _heard(config),
        format=backend_format(config.audio.input.format),
        turn_detection=detection or _detection(config),
    )


def _alone(config: SessionConfig) -> RecognitionConfig:
    return recognition(config, BackendDetection(mode=TurnMode.NONE))


def _detection(config: SessionConfig) -> BackendDetection:
    detection = config.audio.input.turn_detection
    if detection is None:
        return BackendDetection(mode=TurnMode.NONE)
    if isinstance(detection, SemanticVad):
        return BackendDetection(
            mode=TurnMode.SEMANTIC,
            prefix_ms=SEMANTIC_PREFIX_MS,
            eagerness="medium" if detection.eagerness == "auto" else detection.eagerness,
        )
    return BackendDetection(
        mode=TurnMode.SERVER_VAD,
        threshold=detection.threshold,
        silence_ms=speculation.pause_ms(config) or detection.silence_duration_ms,
        prefix_ms=detection.prefix_padding_ms,
    )


def _heard(config: SessionConfig) -> RecognitionConfig:
    """What is to be heard, whatever the audio's format and turns are."""
    transcription = config.audio.input.transcription
    if transcription is None:
        return RecognitionConfig()
    languages = transcription.languages or []
    only = languages[0] if len(languages) == 1 else ""
    return RecognitionConfig(
        model=transcription.model or "",
        language=transcription.language or only,
        prompt=transcription.prompt or "",
        keywords=tuple(transcription.keywords or ()),
        diarization=Diarization() if config.diarizes else None,
        partials=config.transcribes_only,
        words=bool(config.include),
    )
