"""Speech recognition: domain configuration to protobuf, protobuf responses to domain events."""

from __future__ import annotations

from antiphon.vocoder.v1 import recognition_service_pb2 as pb
from antiphon_core.rpc.errors import from_status

from antiphon_gateway.convert.common import (
    audio_format_to_proto,
    milliseconds_to_duration,
    seconds,
)
from antiphon_gateway.domain import recognition

_TURN_MODES = {
    mode: pb.TurnDetection.Mode.Value(f"MODE_{mode.name}") for mode in recognition.TurnMode
}


def config_to_proto(config: recognition.RecognitionConfig) -> pb.RecognitionConfig:
    """The configuration of live or file recognition."""
    message = pb.RecognitionConfig(
        model=config.model,
        language=config.language,
        task=(
            pb.RECOGNITION_TASK_TRANSLATE if config.translate else pb.RECOGNITION_TASK_TRANSCRIBE
        ),
        partials=config.partials,
        words=config.words,
        token_logprobs=config.logprobs,
        skip_transcription=config.skip_transcription,
        prompt=config.prompt,
        keywords=config.keywords,
        temperature=config.temperature,
    )
    if config.format is not None:
        message.format.CopyFrom(audio_format_to_proto(config.format))
    if config.turn_detection is not None:
        message.turn_detection.CopyFrom(_turn_detection(config.turn_detection))
    if config.diarization is not None:
        message.diarization.CopyFrom(_diarization(config.diarization))
    return message


def live_config_to_proto(config: recognition.RecognitionConfig) -> pb.StreamingRecognizeRequest:
    """The first message of live recognition."""
    return pb.StreamingRecognizeRequest(config=config_to_proto(config))


def live_audio_to_proto(data: bytes) -> pb.StreamingRecognizeRequest:
    """The next audio bytes."""
    return pb.StreamingRecognizeRequest(audio=data)


def flush_to_proto(tag: str) -> pb.StreamingRecognizeRequest:
    """End the present utterance here."""
    return pb.StreamingRecognizeRequest(flush=pb.RecognitionFlush(tag=tag))


def reset_to_proto() -> pb.StreamingRecognizeRequest:
    """Drop the present utterance and all turn state."""
    return pb.StreamingRecognizeRequest(reset=pb.RecognitionReset())


def turn_detection_to_proto(
    detection: recognition.TurnDetection,
) -> pb.StreamingRecognizeRequest:
    """Change turn detection from here on."""
    return pb.StreamingRecognizeRequest(turn_detection=_turn_detection(detection))


def start_to_proto(
    stream_id: str, config: recognition.RecognitionConfig, request_id: str
) -> pb.StreamAction:
    """The beginning of one of many live streams."""
    start = pb.StartRecognition(config=config_to_proto(config), request_id=request_id)
    return pb.StreamAction(stream_id=stream_id, start=start)


def message_to_proto(stream_id: str, message: pb.StreamingRecognizeRequest) -> pb.StreamAction:
    """A message of the simple form for one of many live streams."""
    return pb.StreamAction(stream_id=stream_id, message=message)


def end_input_to_proto(stream_id: str) -> pb.StreamAction:
    """The end of the input of one of many live streams."""
    return pb.StreamAction(stream_id=stream_id, end_input=pb.EndRecognitionInput())


def cancel_to_proto(stream_id: str) -> pb.StreamAction:
    """The end of one of many live streams."""
    return pb.StreamAction(stream_id=stream_id, cancel=pb.CancelRecognition())


def file_config_to_proto(config: recognition.RecognitionConfig) -> pb.RecognizeRequest:
    """The first message of file recognition."""
    return pb.RecognizeRequest(config=config_to_proto(config))


def file_audio_to_proto(data: bytes) -> pb.RecognizeRequest:
    """The next bytes of the file."""
    return pb.RecognizeRequest(audio=data)


def live_response_to_event(
    message: pb.StreamingRecognizeResponse,
) -> recognition.RecognitionEvent | None:
    """The event of one response; None for a kind that this build does not know."""
    kind = message.WhichOneof("message")
    if kind == "partial":
        partial = message.partial
        return recognition.PartialTranscript(
            partial.utterance, partial.text, partial.stable_characters
        )
    if kind == "speech_started":
        started = message.speech_started
        return recognition.SpeechStarted(started.utterance, started.at_ms)
    if kind == "speech_stopped":
        stopped = message.speech_stopped
        return recognition.SpeechStopped(stopped.utterance, stopped.at_ms, stopped.forced)
    if kind == "final":
        return _final(message.final)
    if kind == "error":
        error = message.error
        return recognition.UtteranceError(error.utterance, from_status(error.status), error.tag)
    if kind == "ready":
        ready = message.ready
        return recognition.RecognitionReady(ready.model, ready.detector, ready.detector_fallback)
    if kind == "finished":
        finished = message.finished
        return recognition.RecognitionFinished(
            seconds(finished.audio_duration), finished.utterance_count
        )
    return None


def file_response_to_event(message: pb.RecognizeResponse) -> recognition.FileEvent | None:
    """The event of one response; None for a kind that this build does not know."""
    kind = message.WhichOneof("message")
    if kind == "segment":
        return _segment(message.segment)
    if kind == "finished":
        finished = message.finished
        return recognition.FileFinished(
            text=finished.text,
            language=finished.language,
            audio_seconds=seconds(finished.audio_duration),
            work_seconds=seconds(finished.duration),
        )
    return None


def recognizer_from_proto(message: pb.Recognizer) -> recognition.Recognizer:
    """One recogniser."""
    return recognition.Recognizer(
        id=message.id,
        languages=tuple(message.languages),
        translates=message.translates,
        aliases=tuple(message.aliases),
        diarizes=message.diarizes,
    )


def _diarization(diarization: recognition.Diarization) -> pb.Diarization:
    return pb.Diarization(
        known_speakers=[
            pb.KnownSpeaker(name=speaker.name, audio=speaker.audio)
            for speaker in diarization.known_speakers
        ]
    )


def _turn_detection(detection: recognition.TurnDetection) -> pb.TurnDetection:
    message = pb.TurnDetection(
        mode=pb.TurnDetection.Mode.Name(_TURN_MODES[detection.mode]),
        threshold=detection.threshold,
        detector=detection.detector,
        eagerness=f"EAGERNESS_{(detection.eagerness or 'unspecified').upper()}",
    )
    if detection.silence_ms is not None:
        message.silence.CopyFrom(milliseconds_to_duration(detection.silence_ms))
    if detection.prefix_ms is not None:
        message.prefix.CopyFrom(milliseconds_to_duration(detection.prefix_ms))
    return message


def _final(final: pb.FinalTranscript) -> recognition.FinalTranscript:
    return recognition.FinalTranscript(
        utterance=final.utterance,
        text=final.text,
        start_ms=final.start_ms,
        end_ms=final.end_ms,
        language=final.language,
        segments=tuple(_segment(segment) for segment in final.segments),
        tag=final.tag,
        confidence=final.confidence,
        no_speech_probability=final.no_speech_probability,
    )


def _segment(segment: pb.TranscriptSegment) -> recognition.TranscriptSegment:
    return recognition.TranscriptSegment(
        text=segment.text,
        start_ms=segment.start_ms,
        end_ms=segment.end_ms,
        token_ids=tuple(segment.token_ids),
        temperature=segment.temperature,
        average_logprob=segment.average_logprob,
        compression_ratio=segment.compression_ratio,
        no_speech_probability=segment.no_speech_probability,
        words=tuple(
            recognition.Word(word.text, word.start_ms, word.end_ms, word.probability)
            for word in segment.words
        ),
        tokens=tuple(recognition.Token(token.text, token.logprob) for token in segment.tokens),
        speaker=segment.speaker,
    )
