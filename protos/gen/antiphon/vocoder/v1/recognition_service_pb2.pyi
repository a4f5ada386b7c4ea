import datetime

from antiphon.common.v1 import audio_pb2 as _audio_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecognitionTask(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECOGNITION_TASK_UNSPECIFIED: _ClassVar[RecognitionTask]
    RECOGNITION_TASK_TRANSCRIBE: _ClassVar[RecognitionTask]
    RECOGNITION_TASK_TRANSLATE: _ClassVar[RecognitionTask]
RECOGNITION_TASK_UNSPECIFIED: RecognitionTask
RECOGNITION_TASK_TRANSCRIBE: RecognitionTask
RECOGNITION_TASK_TRANSLATE: RecognitionTask

class StreamingRecognizeRequest(_message.Message):
    __slots__ = ("config", "audio", "flush", "reset", "turn_detection")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    TURN_DETECTION_FIELD_NUMBER: _ClassVar[int]
    config: RecognitionConfig
    audio: bytes
    flush: RecognitionFlush
    reset: RecognitionReset
    turn_detection: TurnDetection
    def __init__(self, config: _Optional[_Union[RecognitionConfig, _Mapping]] = ..., audio: _Optional[bytes] = ..., flush: _Optional[_Union[RecognitionFlush, _Mapping]] = ..., reset: _Optional[_Union[RecognitionReset, _Mapping]] = ..., turn_detection: _Optional[_Union[TurnDetection, _Mapping]] = ...) -> None: ...

class StreamingRecognizeManyRequest(_message.Message):
    __slots__ = ("stream_ids", "audio", "actions")
    STREAM_IDS_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    stream_ids: _containers.RepeatedScalarFieldContainer[str]
    audio: _containers.RepeatedScalarFieldContainer[bytes]
    actions: _containers.RepeatedCompositeFieldContainer[StreamAction]
    def __init__(self, stream_ids: _Optional[_Iterable[str]] = ..., audio: _Optional[_Iterable[bytes]] = ..., actions: _Optional[_Iterable[_Union[StreamAction, _Mapping]]] = ...) -> None: ...

class StreamAction(_message.Message):
    __slots__ = ("stream_id", "start", "message", "end_input", "cancel")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    END_INPUT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    stream_id: str
    start: StartRecognition
    message: StreamingRecognizeRequest
    end_input: EndRecognitionInput
    cancel: CancelRecognition
    def __init__(self, stream_id: _Optional[str] = ..., start: _Optional[_Union[StartRecognition, _Mapping]] = ..., message: _Optional[_Union[StreamingRecognizeRequest, _Mapping]] = ..., end_input: _Optional[_Union[EndRecognitionInput, _Mapping]] = ..., cancel: _Optional[_Union[CancelRecognition, _Mapping]] = ...) -> None: ...

class StartRecognition(_message.Message):
    __slots__ = ("config", "request_id")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    config: RecognitionConfig
    request_id: str
    def __init__(self, config: _Optional[_Union[RecognitionConfig, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class EndRecognitionInput(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelRecognition(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecognitionConfig(_message.Message):
    __slots__ = ("model", "format", "language", "task", "turn_detection", "partials", "words", "skip_transcription", "prompt", "temperature", "token_logprobs", "diarization", "keywords")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    TURN_DETECTION_FIELD_NUMBER: _ClassVar[int]
    PARTIALS_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    SKIP_TRANSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DIARIZATION_FIELD_NUMBER: _ClassVar[int]
    KEYWORDS_FIELD_NUMBER: _ClassVar[int]
    model: str
    format: _audio_pb2.AudioFormat
    language: str
    task: RecognitionTask
    turn_detection: TurnDetection
    partials: bool
    words: bool
    skip_transcription: bool
    prompt: str
    temperature: float
    token_logprobs: bool
    diarization: Diarization
    keywords: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[str] = ..., format: _Optional[_Union[_audio_pb2.AudioFormat, _Mapping]] = ..., language: _Optional[str] = ..., task: _Optional[_Union[RecognitionTask, str]] = ..., turn_detection: _Optional[_Union[TurnDetection, _Mapping]] = ..., partials: _Optional[bool] = ..., words: _Optional[bool] = ..., skip_transcription: _Optional[bool] = ..., prompt: _Optional[str] = ..., temperature: _Optional[float] = ..., token_logprobs: _Optional[bool] = ..., diarization: _Optional[_Union[Diarization, _Mapping]] = ..., keywords: _Optional[_Iterable[str]] = ...) -> None: ...

class Diarization(_message.Message):
    __slots__ = ("known_speakers", "max_speakers")
    KNOWN_SPEAKERS_FIELD_NUMBER: _ClassVar[int]
    MAX_SPEAKERS_FIELD_NUMBER: _ClassVar[int]
    known_speakers: _containers.RepeatedCompositeFieldContainer[KnownSpeaker]
    max_speakers: int
    def __init__(self, known_speakers: _Optional[_Iterable[_Union[KnownSpeaker, _Mapping]]] = ..., max_speakers: _Optional[int] = ...) -> None: ...

class KnownSpeaker(_message.Message):
    __slots__ = ("name", "audio")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    name: str
    audio: bytes
    def __init__(self, name: _Optional[str] = ..., audio: _Optional[bytes] = ...) -> None: ...

class TurnDetection(_message.Message):
    __slots__ = ("mode", "threshold", "silence", "prefix", "detector", "eagerness", "max_silence")
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MODE_UNSPECIFIED: _ClassVar[TurnDetection.Mode]
        MODE_NONE: _ClassVar[TurnDetection.Mode]
        MODE_SERVER_VAD: _ClassVar[TurnDetection.Mode]
        MODE_SEMANTIC: _ClassVar[TurnDetection.Mode]
    MODE_UNSPECIFIED: TurnDetection.Mode
    MODE_NONE: TurnDetection.Mode
    MODE_SERVER_VAD: TurnDetection.Mode
    MODE_SEMANTIC: TurnDetection.Mode
    class Eagerness(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        EAGERNESS_UNSPECIFIED: _ClassVar[TurnDetection.Eagerness]
        EAGERNESS_LOW: _ClassVar[TurnDetection.Eagerness]
        EAGERNESS_MEDIUM: _ClassVar[TurnDetection.Eagerness]
        EAGERNESS_HIGH: _ClassVar[TurnDetection.Eagerness]
    EAGERNESS_UNSPECIFIED: TurnDetection.Eagerness
    EAGERNESS_LOW: TurnDetection.Eagerness
    EAGERNESS_MEDIUM: TurnDetection.Eagerness
    EAGERNESS_HIGH: TurnDetection.Eagerness
    MODE_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    SILENCE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    DETECTOR_FIELD_NUMBER: _ClassVar[int]
    EAGERNESS_FIELD_NUMBER: _ClassVar[int]
    MAX_SILENCE_FIELD_NUMBER: _ClassVar[int]
    mode: TurnDetection.Mode
    threshold: float
    silence: _duration_pb2.Duration
    prefix: _duration_pb2.Duration
    detector: str
    eagerness: TurnDetection.Eagerness
    max_silence: _duration_pb2.Duration
    def __init__(self, mode: _Optional[_Union[TurnDetection.Mode, str]] = ..., threshold: _Optional[float] = ..., silence: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prefix: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., detector: _Optional[str] = ..., eagerness: _Optional[_Union[TurnDetection.Eagerness, str]] = ..., max_silence: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RecognitionFlush(_message.Message):
    __slots__ = ("tag",)
    TAG_FIELD_NUMBER: _ClassVar[int]
    tag: str
    def __init__(self, tag: _Optional[str] = ...) -> None: ...

class RecognitionReset(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StreamingRecognizeResponse(_message.Message):
    __slots__ = ("ready", "speech_started", "speech_stopped", "partial", "final", "error", "finished")
    READY_FIELD_NUMBER: _ClassVar[int]
    SPEECH_STARTED_FIELD_NUMBER: _ClassVar[int]
    SPEECH_STOPPED_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    ready: RecognitionReady
    speech_started: SpeechStarted
    speech_stopped: SpeechStopped
    partial: PartialTranscript
    final: FinalTranscript
    error: UtteranceError
    finished: RecognitionFinished
    def __init__(self, ready: _Optional[_Union[RecognitionReady, _Mapping]] = ..., speech_started: _Optional[_Union[SpeechStarted, _Mapping]] = ..., speech_stopped: _Optional[_Union[SpeechStopped, _Mapping]] = ..., partial: _Optional[_Union[PartialTranscript, _Mapping]] = ..., final: _Optional[_Union[FinalTranscript, _Mapping]] = ..., error: _Optional[_Union[UtteranceError, _Mapping]] = ..., finished: _Optional[_Union[RecognitionFinished, _Mapping]] = ...) -> None: ...

class StreamingRecognizeManyResponse(_message.Message):
    __slots__ = ("events", "credit_stream_ids", "credit_bytes")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_STREAM_IDS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[StreamEvent]
    credit_stream_ids: _containers.RepeatedScalarFieldContainer[str]
    credit_bytes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, events: _Optional[_Iterable[_Union[StreamEvent, _Mapping]]] = ..., credit_stream_ids: _Optional[_Iterable[str]] = ..., credit_bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class StreamEvent(_message.Message):
    __slots__ = ("stream_id", "message", "error")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    stream_id: str
    message: StreamingRecognizeResponse
    error: _status_pb2.Status
    def __init__(self, stream_id: _Optional[str] = ..., message: _Optional[_Union[StreamingRecognizeResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class RecognitionReady(_message.Message):
    __slots__ = ("model", "detector", "detector_fallback", "turn_judge")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DETECTOR_FIELD_NUMBER: _ClassVar[int]
    DETECTOR_FALLBACK_FIELD_NUMBER: _ClassVar[int]
    TURN_JUDGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    detector: str
    detector_fallback: bool
    turn_judge: str
    def __init__(self, model: _Optional[str] = ..., detector: _Optional[str] = ..., detector_fallback: _Optional[bool] = ..., turn_judge: _Optional[str] = ...) -> None: ...

class SpeechStarted(_message.Message):
    __slots__ = ("utterance", "at_ms")
    UTTERANCE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    utterance: int
    at_ms: int
    def __init__(self, utterance: _Optional[int] = ..., at_ms: _Optional[int] = ...) -> None: ...

class SpeechStopped(_message.Message):
    __slots__ = ("utterance", "at_ms", "end_probability", "forced")
    UTTERANCE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    END_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    utterance: int
    at_ms: int
    end_probability: float
    forced: bool
    def __init__(self, utterance: _Optional[int] = ..., at_ms: _Optional[int] = ..., end_probability: _Optional[float] = ..., forced: _Optional[bool] = ...) -> None: ...

class PartialTranscript(_message.Message):
    __slots__ = ("utterance", "text", "stable_characters")
    UTTERANCE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    STABLE_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    utterance: int
    text: str
    stable_characters: int
    def __init__(self, utterance: _Optional[int] = ..., text: _Optional[str] = ..., stable_characters: _Optional[int] = ...) -> None: ...

class Word(_message.Message):
    __slots__ = ("text", "start_ms", "end_ms", "probability")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    text: str
    start_ms: int
    end_ms: int
    probability: float
    def __init__(self, text: _Optional[str] = ..., start_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., probability: _Optional[float] = ...) -> None: ...

class TranscriptSegment(_message.Message):
    __slots__ = ("text", "start_ms", "end_ms", "token_ids", "temperature", "average_logprob", "compression_ratio", "no_speech_probability", "words", "tokens", "speaker")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    AVERAGE_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_RATIO_FIELD_NUMBER: _ClassVar[int]
    NO_SPEECH_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPEAKER_FIELD_NUMBER: _ClassVar[int]
    text: str
    start_ms: int
    end_ms: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    temperature: float
    average_logprob: float
    compression_ratio: float
    no_speech_probability: float
    words: _containers.RepeatedCompositeFieldContainer[Word]
    tokens: _containers.RepeatedCompositeFieldContainer[TranscriptToken]
    speaker: str
    def __init__(self, text: _Optional[str] = ..., start_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., temperature: _Optional[float] = ..., average_logprob: _Optional[float] = ..., compression_ratio: _Optional[float] = ..., no_speech_probability: _Optional[float] = ..., words: _Optional[_Iterable[_Union[Word, _Mapping]]] = ..., tokens: _Optional[_Iterable[_Union[TranscriptToken, _Mapping]]] = ..., speaker: _Optional[str] = ...) -> None: ...

class TranscriptToken(_message.Message):
    __slots__ = ("text", "logprob")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    text: bytes
    logprob: float
    def __init__(self, text: _Optional[bytes] = ..., logprob: _Optional[float] = ...) -> None: ...

class FinalTranscript(_message.Message):
    __slots__ = ("utterance", "text", "start_ms", "end_ms", "language", "segments", "tag", "confidence", "no_speech_probability")
    UTTERANCE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    NO_SPEECH_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    utterance: int
    text: str
    start_ms: int
    end_ms: int
    language: str
    segments: _containers.RepeatedCompositeFieldContainer[TranscriptSegment]
    tag: str
    confidence: float
    no_speech_probability: float
    def __init__(self, utterance: _Optional[int] = ..., text: _Optional[str] = ..., start_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., language: _Optional[str] = ..., segments: _Optional[_Iterable[_Union[TranscriptSegment, _Mapping]]] = ..., tag: _Optional[str] = ..., confidence: _Optional[float] = ..., no_speech_probability: _Optional[float] = ...) -> None: ...

class UtteranceError(_message.Message):
    __slots__ = ("utterance", "status", "tag")
    UTTERANCE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    utterance: int
    status: _status_pb2.Status
    tag: str
    def __init__(self, utterance: _Optional[int] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., tag: _Optional[str] = ...) -> None: ...

class RecognitionFinished(_message.Message):
    __slots__ = ("audio_duration", "utterance_count")
    AUDIO_DURATION_FIELD_NUMBER: _ClassVar[int]
    UTTERANCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    audio_duration: _duration_pb2.Duration
    utterance_count: int
    def __init__(self, audio_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., utterance_count: _Optional[int] = ...) -> None: ...

class RecognizeRequest(_message.Message):
    __slots__ = ("config", "audio")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    config: RecognitionConfig
    audio: bytes
    def __init__(self, config: _Optional[_Union[RecognitionConfig, _Mapping]] = ..., audio: _Optional[bytes] = ...) -> None: ...

class RecognizeResponse(_message.Message):
    __slots__ = ("segment", "finished")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    segment: TranscriptSegment
    finished: RecognizeFinished
    def __init__(self, segment: _Optional[_Union[TranscriptSegment, _Mapping]] = ..., finished: _Optional[_Union[RecognizeFinished, _Mapping]] = ...) -> None: ...

class RecognizeFinished(_message.Message):
    __slots__ = ("text", "language", "audio_duration", "duration")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    AUDIO_DURATION_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    text: str
    language: str
    audio_duration: _duration_pb2.Duration
    duration: _duration_pb2.Duration
    def __init__(self, text: _Optional[str] = ..., language: _Optional[str] = ..., audio_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ListRecognizersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRecognizersResponse(_message.Message):
    __slots__ = ("recognizers",)
    RECOGNIZERS_FIELD_NUMBER: _ClassVar[int]
    recognizers: _containers.RepeatedCompositeFieldContainer[Recognizer]
    def __init__(self, recognizers: _Optional[_Iterable[_Union[Recognizer, _Mapping]]] = ...) -> None: ...

class Recognizer(_message.Message):
    __slots__ = ("id", "languages", "translates", "aliases", "diarizes")
    ID_FIELD_NUMBER: _ClassVar[int]
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    TRANSLATES_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    DIARIZES_FIELD_NUMBER: _ClassVar[int]
    id: str
    languages: _containers.RepeatedScalarFieldContainer[str]
    translates: bool
    aliases: _containers.RepeatedScalarFieldContainer[str]
    diarizes: bool
    def __init__(self, id: _Optional[str] = ..., languages: _Optional[_Iterable[str]] = ..., translates: _Optional[bool] = ..., aliases: _Optional[_Iterable[str]] = ..., diarizes: _Optional[bool] = ...) -> None: ...
