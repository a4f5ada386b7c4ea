"""Between the wire's messages and the domain's."""

from __future__ import annotations

from antiphon.common.v1 import audio_pb2
from antiphon.vocoder.v1 import recognition_service_pb2 as pb
from antiphon_core.errors import InvalidArgument, NotFound
from antiphon_core.rpc.errors import to_status
from google.protobuf.duration_pb2 import Duration

from antiphon_vocoder.formats import MAX_RATE, MIN_RATE
from antiphon_vocoder.recognition import messages as wire
from antiphon_vocoder.recognition.config import RecognitionSettings
from antiphon_vocoder.recognition.failures import error_of
from antiphon_vocoder.recognition.options_convert import decode_options, refuse, speaker_options

MAX_AUDIO_BYTES = 1 << 20
"""Of one message."""
_SILENCE_MS = (100, 10_000)
_PREFIX_MS = (0, 5_000)
_MAX_SILENCE_MS = 30_000
JUDGED_PAUSE_MS = 200
_UNSET = pb.TurnDetection.EAGERNESS_UNSPECIFIED
_LOW, _MEDIUM = pb.TurnDetection.EAGERNESS_LOW, pb.TurnDetection.EAGERNESS_MEDIUM
_HIGH = pb.TurnDetection.EAGERNESS_HIGH
_END_THRESHOLD = {_UNSET: 0.4, _LOW: 0.55, _MEDIUM: 0.4, _HIGH: 0.25}
_LONGEST_SILENCE_MS = {_UNSET: 4000, _LOW: 8000, _MEDIUM: 4000, _HIGH: 2000}
_DEFAULT_RATE = 16_000
_G711_RATE = 8_000
_RAW = {
    audio_pb2.AUDIO_ENCODING_PCM16: "pcm16",
    audio_pb2.AUDIO_ENCODING_PCMU: "pcmu",
    audio_pb2.AUDIO_ENCODING_PCMA: "pcma",
}


def stream_options(
    config: pb.RecognitionConfig, settings: RecognitionSettings, info: wire.RecognizerInfo
) -> wire.StreamOptions:
    """Checked options of a live stream.

    Raises:
        InvalidArgument: naming the field and the allowed values.
        NotFound: no such recogniser.
        FailedPrecondition: SPEAKER_MODEL_MISSING.
    """
    check_model(config.model, settings)
    encoding, rate = _raw_format(config.format, default="pcm16")
    return wire.StreamOptions(
        encoding=encoding,
        rate=rate,
        turns=turn_options(config.turn_detection, "config.turn_detection"),
        decode=decode_options(config, info),
        partials=config.partials and not config.skip_transcription,
        transcribe=not config.skip_transcription,
        speakers=speaker_options(config, settings, info),
    )


def file_request(
    config: pb.RecognitionConfig,
    settings: RecognitionSettings,
    info: wire.RecognizerInfo,
    *,
    job: int,
    path: str,
) -> wire.RecognizeFile:
    """Checked request of a file job; errors as ``stream_options``."""
    check_model(config.model, settings)
    if config.skip_transcription:
        raise InvalidArgument(
            "a file is always transcribed", field="config.skip_transcription", allowed=("false",)
        )
    encoding, rate = "", 0
    if config.format.encoding in _RAW:
        encoding, rate = _raw_format(config.format, default="")
    else:
        _require_known_encoding(config.format.encoding)
    decode = decode_options(config, info)
    speakers = speaker_options(config, settings, info)
    return wire.RecognizeFile(job, path, encoding, rate, decode, speakers)


def check_model(name: str, settings: RecognitionSettings) -> None:
    """Raises NotFound unless the name is empty, the recogniser's or an alias."""
    names = (settings.model_name, *settings.aliases)
    if name and name not in names:
        raise NotFound(
            f"no recogniser is called {name!r}",
            reason="MODEL_NOT_FOUND",
            field="config.model",
            allowed=names,
        )


def turn_options(message: pb.TurnDetection, path: str) -> wire.TurnOptions:
    """Checked turn detection; ``path`` names the message in errors.

    Raises:
        InvalidArgument: naming the field.
    """
    defaults = wire.TurnOptions()
    modes = pb.TurnDetection
    if message.mode not in modes.Mode.values():
        refuse(f"{path}.mode", message.mode, modes.Mode.keys())
    judged = message.mode == modes.MODE_SEMANTIC
    threshold = message.threshold if message.HasField("threshold") else defaults.threshold
    if not 0 <= threshold <= 1:
        refuse(f"{path}.threshold", threshold, ("0 to 1",))
    detector = message.detector or defaults.detector
    if detector not in wire.DETECTORS:
        refuse(f"{path}.detector", detector, wire.DETECTORS)
    silence_ms = JUDGED_PAUSE_MS if judged else defaults.silence_ms
    prefix_ms = defaults.prefix_ms
    if message.HasField("silence"):
        silence_ms = _milliseconds(message.silence, f"{path}.silence", _SILENCE_MS)
    if message.HasField("prefix"):
        prefix_ms = _milliseconds(message.prefix, f"{path}.prefix", _PREFIX_MS)
    end_threshold, longest_ms = _judgement(message, path, silence_ms)
    return wire.TurnOptions(
        manual=message.mode == modes.MODE_NONE,
        threshold=threshold,
        silence_ms=silence_ms,
        prefix_ms=prefix_ms,
        detector=detector,
        judged=judged,
        end_threshold=end_threshold,
        longest_silence_ms=longest_ms,
    )


def _judgement(message: pb.TurnDetection, path: str, silence_ms: int) -> tuple[float, int]:
    """Probability and silence from which a judged turn ends."""
    if message.eagerness not in _END_THRESHOLD:
        refuse(f"{path}.eagerness", message.eagerness, pb.TurnDetection.Eagerness.keys())
    has_limit = message.HasField("max_silence")
    if message.mode != pb.TurnDetection.MODE_SEMANTIC and (message.eagerness or has_limit):
        field = "max_silence" if has_limit else "eagerness"
        raise InvalidArgument(
            f"{path}.{field} is for judged turns; the mode is another",
            field=f"{path}.mode",
            allowed=("MODE_SEMANTIC",),
        )
    longest_ms = max(_LONGEST_SILENCE_MS[message.eagerness], silence_ms)
    if has_limit:
        limits = (silence_ms, _MAX_SILENCE_MS)
        longest_ms = _milliseconds(message.max_silence, f"{path}.max_silence", limits)
    return _END_THRESHOLD[message.eagerness], longest_ms


def stream_command(request: pb.StreamingRecognizeRequest, number: int) -> wire.StreamCommand:
    """The worker's form of a message behind the configuration.

    Args:
        request: the wire's message.
        number: of the stream.

    Raises:
        InvalidArgument: it is none, or a field is wrong.
    """
    match request.WhichOneof("message"):
        case "audio":
            check_size(request.audio)
            return wire.Audio(number, request.audio)
        case "flush":
            return wire.Flush(number, request.flush.tag)
        case "reset":
            return wire.Reset(number)
        case "turn_detection":
            return wire.SetTurns(number, turn_options(request.turn_detection, "turn_detection"))
        case "config":
            raise protocol_error("config is sent once, as the first message", "config")
        case _:
            raise protocol_error("a message without content", "message")


def check_size(audio: bytes) -> None:
    """Raises InvalidArgument where a piece of audio is too large."""
    if len(audio) > MAX_AUDIO_BYTES:
        raise InvalidArgument(
            f"a message of audio has at most {MAX_AUDIO_BYTES} bytes, got {len(audio)}",
            reason="TOO_LARGE",
            field="audio",
            metadata={"limit": str(MAX_AUDIO_BYTES), "observed": str(len(audio))},
        )


def protocol_error(problem: str, field: str) -> InvalidArgument:
    """The error of a message that does not belong where it stands."""
    return InvalidArgument(problem, reason="STREAM_PROTOCOL", field=field)


def ready_response(message: wire.StreamReady, model: str) -> pb.StreamingRecognizeResponse:
    """The first response of a stream."""
    return pb.StreamingRecognizeResponse(
        ready=pb.RecognitionReady(
            model=model,
            detector=message.detector,
            detector_fallback=message.detector_fallback,
            turn_judge=message.turn_judge,
        )
    )


def stream_response(message: object) -> pb.StreamingRecognizeResponse | None:
    """The wire's form of a worker's message; None for one that the caller does not see."""
    response = pb.StreamingRecognizeResponse
    match message:
        case wire.Started():
            event = pb.SpeechStarted(utterance=message.utterance, at_ms=message.at_ms)
            return response(speech_started=event)
        case wire.Stopped():
            event = pb.SpeechStopped(
                utterance=message.utterance,
                at_ms=message.at_ms,
                end_probability=message.end_probability,
                forced=message.forced,
            )
            return response(speech_stopped=event)
        case wire.Partial():
            partial = pb.PartialTranscript(
                utterance=message.utterance,
                text=message.text,
                stable_characters=message.stable_characters,
            )
            return response(partial=partial)
        case wire.Final():
            return response(final=_final(message))
        case wire.UtteranceFailed():
            error = pb.UtteranceError(
                utterance=message.utterance,
                status=to_status(error_of(message.failure)),
                tag=message.tag_text,
            )
            return response(error=error)
        case wire.StreamFinished():
            finished = pb.RecognitionFinished(
                audio_duration=duration(message.audio_seconds),
                utterance_count=message.utterances,
            )
            return response(finished=finished)
        case _:
            return None


def segment_message(segment: wire.Segment) -> pb.TranscriptSegment:
    """The wire's form of a segment."""
    return pb.TranscriptSegment(
        text=segment.text,
        start_ms=segment.start_ms,
        end_ms=segment.end_ms,
        token_ids=segment.token_ids,
        temperature=segment.temperature,
        average_logprob=segment.average_logprob,
        compression_ratio=segment.compression_ratio,
        no_speech_probability=segment.no_speech_probability,
        words=[
            pb.Word(
                text=word.text,
                start_ms=word.start_ms,
                end_ms=word.end_ms,
                probability=word.probability,
            )
            for word in segment.words
        ],
        tokens=[
            pb.TranscriptToken(text=token.text, logprob=token.logprob) for token in segment.tokens
        ],
        speaker=segment.speaker,
    )


def duration(seconds: float) -> Duration:
    """A protobuf duration, to the nanosecond."""
    nanos = round(seconds * 1_000_000_000)
    return Duration(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)


def _final(message: wire.Final) -> pb.FinalTranscript:
    return pb.FinalTranscript(
        utterance=message.utterance,
        text=message.text,
        start_ms=message.start_ms,
        end_ms=message.end_ms,
        language=message.language,
        segments=[segment_message(segment) for segment in message.segments],
        tag=message.tag_text,
        confidence=message.confidence,
        no_speech_probability=message.no_speech_probability,
    )


def _raw_format(message: audio_pb2.AudioFormat, *, default: str) -> tuple[str, int]:
    if message.encoding == audio_pb2.AUDIO_ENCODING_UNSPECIFIED and default:
        encoding = default
    elif message.encoding in _RAW:
        encoding = _RAW[message.encoding]
    else:
        names = [audio_pb2.AudioEncoding.Name(number) for number in _RAW]
        refuse("config.format.encoding", message.encoding, names)
    if encoding == "pcm16":
        rate = message.sample_rate_hz or _DEFAULT_RATE
        if not MIN_RATE <= rate <= MAX_RATE:
            refuse("config.format.sample_rate_hz", rate, (f"{MIN_RATE} to {MAX_RATE}",))
    else:
        rate = message.sample_rate_hz or _G711_RATE
        if rate != _G711_RATE:
            refuse("config.format.sample_rate_hz", rate, (str(_G711_RATE),))
    return encoding, rate


def _require_known_encoding(encoding: int) -> None:
    if encoding not in audio_pb2.AudioEncoding.values():
        refuse("config.format.encoding", encoding, audio_pb2.AudioEncoding.keys())


def _milliseconds(message: Duration, field: str, limits: tuple[int, int]) -> int:
    milliseconds = message.seconds * 1000 + message.nanos / 1_000_000
    low, high = limits
    if not low <= milliseconds <= high:
        refuse(field, f"{milliseconds / 1000:g} s", (f"{low / 1000:g} s to {high / 1000:g} s",))
    return round(milliseconds)
