import datetime

from antiphon.common.v1 import audio_pb2 as _audio_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SpeechInputKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPEECH_INPUT_KIND_UNSPECIFIED: _ClassVar[SpeechInputKind]
    SPEECH_INPUT_KIND_TEXT: _ClassVar[SpeechInputKind]
    SPEECH_INPUT_KIND_CODES: _ClassVar[SpeechInputKind]

class Chunking(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHUNKING_UNSPECIFIED: _ClassVar[Chunking]
    CHUNKING_CLAUSE: _ClassVar[Chunking]
    CHUNKING_SENTENCE: _ClassVar[Chunking]

class UnknownVoice(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN_VOICE_UNSPECIFIED: _ClassVar[UnknownVoice]
    UNKNOWN_VOICE_ERROR: _ClassVar[UnknownVoice]
    UNKNOWN_VOICE_DEFAULT: _ClassVar[UnknownVoice]

class SpeechFinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPEECH_FINISH_REASON_UNSPECIFIED: _ClassVar[SpeechFinishReason]
    SPEECH_FINISH_REASON_COMPLETE: _ClassVar[SpeechFinishReason]
    SPEECH_FINISH_REASON_LENGTH: _ClassVar[SpeechFinishReason]
    SPEECH_FINISH_REASON_VOICE_DELETED: _ClassVar[SpeechFinishReason]

class VoiceKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VOICE_KIND_UNSPECIFIED: _ClassVar[VoiceKind]
    VOICE_KIND_PRESET: _ClassVar[VoiceKind]
    VOICE_KIND_UPLOADED: _ClassVar[VoiceKind]
    VOICE_KIND_CLONED: _ClassVar[VoiceKind]
SPEECH_INPUT_KIND_UNSPECIFIED: SpeechInputKind
SPEECH_INPUT_KIND_TEXT: SpeechInputKind
SPEECH_INPUT_KIND_CODES: SpeechInputKind
CHUNKING_UNSPECIFIED: Chunking
CHUNKING_CLAUSE: Chunking
CHUNKING_SENTENCE: Chunking
UNKNOWN_VOICE_UNSPECIFIED: UnknownVoice
UNKNOWN_VOICE_ERROR: UnknownVoice
UNKNOWN_VOICE_DEFAULT: UnknownVoice
SPEECH_FINISH_REASON_UNSPECIFIED: SpeechFinishReason
SPEECH_FINISH_REASON_COMPLETE: SpeechFinishReason
SPEECH_FINISH_REASON_LENGTH: SpeechFinishReason
SPEECH_FINISH_REASON_VOICE_DELETED: SpeechFinishReason
VOICE_KIND_UNSPECIFIED: VoiceKind
VOICE_KIND_PRESET: VoiceKind
VOICE_KIND_UPLOADED: VoiceKind
VOICE_KIND_CLONED: VoiceKind

class StreamSpeechRequest(_message.Message):
    __slots__ = ("config", "text", "codes", "flush", "clear")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    config: SpeechConfig
    text: str
    codes: _audio_pb2.CodeFrames
    flush: SpeechFlush
    clear: SpeechClear
    def __init__(self, config: _Optional[_Union[SpeechConfig, _Mapping]] = ..., text: _Optional[str] = ..., codes: _Optional[_Union[_audio_pb2.CodeFrames, _Mapping]] = ..., flush: _Optional[_Union[SpeechFlush, _Mapping]] = ..., clear: _Optional[_Union[SpeechClear, _Mapping]] = ...) -> None: ...

class SpeechConfig(_message.Message):
    __slots__ = ("voice", "model", "input_kind", "code_format", "output_format", "speed", "language", "chunking", "noise_key", "unknown_voice", "instructions", "exact_container")
    VOICE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUT_KIND_FIELD_NUMBER: _ClassVar[int]
    CODE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    CHUNKING_FIELD_NUMBER: _ClassVar[int]
    NOISE_KEY_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_VOICE_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    EXACT_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    voice: str
    model: str
    input_kind: SpeechInputKind
    code_format: _audio_pb2.CodeFormat
    output_format: _audio_pb2.AudioFormat
    speed: float
    language: str
    chunking: Chunking
    noise_key: int
    unknown_voice: UnknownVoice
    instructions: str
    exact_container: bool
    def __init__(self, voice: _Optional[str] = ..., model: _Optional[str] = ..., input_kind: _Optional[_Union[SpeechInputKind, str]] = ..., code_format: _Optional[_Union[_audio_pb2.CodeFormat, _Mapping]] = ..., output_format: _Optional[_Union[_audio_pb2.AudioFormat, _Mapping]] = ..., speed: _Optional[float] = ..., language: _Optional[str] = ..., chunking: _Optional[_Union[Chunking, str]] = ..., noise_key: _Optional[int] = ..., unknown_voice: _Optional[_Union[UnknownVoice, str]] = ..., instructions: _Optional[str] = ..., exact_container: _Optional[bool] = ...) -> None: ...

class SpeechFlush(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SpeechClear(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StreamSpeechResponse(_message.Message):
    __slots__ = ("ready", "audio", "mark", "progress", "finished")
    READY_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    ready: SpeechReady
    audio: AudioChunk
    mark: SpeechMark
    progress: SpeechProgress
    finished: SpeechFinished
    def __init__(self, ready: _Optional[_Union[SpeechReady, _Mapping]] = ..., audio: _Optional[_Union[AudioChunk, _Mapping]] = ..., mark: _Optional[_Union[SpeechMark, _Mapping]] = ..., progress: _Optional[_Union[SpeechProgress, _Mapping]] = ..., finished: _Optional[_Union[SpeechFinished, _Mapping]] = ...) -> None: ...

class SpeechReady(_message.Message):
    __slots__ = ("voice", "model", "voice_fallback", "output_format", "queue_wait", "mime_type")
    VOICE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VOICE_FALLBACK_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_WAIT_FIELD_NUMBER: _ClassVar[int]
    MIME_TYPE_FIELD_NUMBER: _ClassVar[int]
    voice: str
    model: str
    voice_fallback: bool
    output_format: _audio_pb2.AudioFormat
    queue_wait: _duration_pb2.Duration
    mime_type: str
    def __init__(self, voice: _Optional[str] = ..., model: _Optional[str] = ..., voice_fallback: _Optional[bool] = ..., output_format: _Optional[_Union[_audio_pb2.AudioFormat, _Mapping]] = ..., queue_wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., mime_type: _Optional[str] = ...) -> None: ...

class AudioChunk(_message.Message):
    __slots__ = ("data", "first_sample", "sample_count")
    DATA_FIELD_NUMBER: _ClassVar[int]
    FIRST_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    first_sample: int
    sample_count: int
    def __init__(self, data: _Optional[bytes] = ..., first_sample: _Optional[int] = ..., sample_count: _Optional[int] = ...) -> None: ...

class SpeechMark(_message.Message):
    __slots__ = ("input_offset", "sample")
    INPUT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    input_offset: int
    sample: int
    def __init__(self, input_offset: _Optional[int] = ..., sample: _Optional[int] = ...) -> None: ...

class SpeechProgress(_message.Message):
    __slots__ = ("elapsed",)
    ELAPSED_FIELD_NUMBER: _ClassVar[int]
    elapsed: _duration_pb2.Duration
    def __init__(self, elapsed: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SpeechFinished(_message.Message):
    __slots__ = ("reason", "sample_count", "input_units", "time_to_first_audio", "duration", "audio_duration", "dropped_symbols")
    REASON_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    INPUT_UNITS_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_AUDIO_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    AUDIO_DURATION_FIELD_NUMBER: _ClassVar[int]
    DROPPED_SYMBOLS_FIELD_NUMBER: _ClassVar[int]
    reason: SpeechFinishReason
    sample_count: int
    input_units: int
    time_to_first_audio: _duration_pb2.Duration
    duration: _duration_pb2.Duration
    audio_duration: _duration_pb2.Duration
    dropped_symbols: int
    def __init__(self, reason: _Optional[_Union[SpeechFinishReason, str]] = ..., sample_count: _Optional[int] = ..., input_units: _Optional[int] = ..., time_to_first_audio: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., audio_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., dropped_symbols: _Optional[int] = ...) -> None: ...

class DecodeCodesRequest(_message.Message):
    __slots__ = ("config", "codes", "flush", "clear")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    config: DecodeConfig
    codes: _audio_pb2.CodeFrames
    flush: SpeechFlush
    clear: SpeechClear
    def __init__(self, config: _Optional[_Union[DecodeConfig, _Mapping]] = ..., codes: _Optional[_Union[_audio_pb2.CodeFrames, _Mapping]] = ..., flush: _Optional[_Union[SpeechFlush, _Mapping]] = ..., clear: _Optional[_Union[SpeechClear, _Mapping]] = ...) -> None: ...

class DecodeConfig(_message.Message):
    __slots__ = ("code_format", "output_format")
    CODE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    code_format: _audio_pb2.CodeFormat
    output_format: _audio_pb2.AudioFormat
    def __init__(self, code_format: _Optional[_Union[_audio_pb2.CodeFormat, _Mapping]] = ..., output_format: _Optional[_Union[_audio_pb2.AudioFormat, _Mapping]] = ...) -> None: ...

class DecodeCodesResponse(_message.Message):
    __slots__ = ("ready", "audio", "finished", "mark", "progress")
    READY_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    ready: SpeechReady
    audio: AudioChunk
    finished: SpeechFinished
    mark: SpeechMark
    progress: SpeechProgress
    def __init__(self, ready: _Optional[_Union[SpeechReady, _Mapping]] = ..., audio: _Optional[_Union[AudioChunk, _Mapping]] = ..., finished: _Optional[_Union[SpeechFinished, _Mapping]] = ..., mark: _Optional[_Union[SpeechMark, _Mapping]] = ..., progress: _Optional[_Union[SpeechProgress, _Mapping]] = ...) -> None: ...

class EncodeAudioRequest(_message.Message):
    __slots__ = ("config", "audio")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    config: EncodeConfig
    audio: bytes
    def __init__(self, config: _Optional[_Union[EncodeConfig, _Mapping]] = ..., audio: _Optional[bytes] = ...) -> None: ...

class EncodeConfig(_message.Message):
    __slots__ = ("code_format", "input_format")
    CODE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    INPUT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    code_format: _audio_pb2.CodeFormat
    input_format: _audio_pb2.AudioFormat
    def __init__(self, code_format: _Optional[_Union[_audio_pb2.CodeFormat, _Mapping]] = ..., input_format: _Optional[_Union[_audio_pb2.AudioFormat, _Mapping]] = ...) -> None: ...

class EncodeAudioResponse(_message.Message):
    __slots__ = ("codes", "finished", "ready", "progress")
    CODES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    codes: _audio_pb2.CodeFrames
    finished: EncodeFinished
    ready: EncodeReady
    progress: SpeechProgress
    def __init__(self, codes: _Optional[_Union[_audio_pb2.CodeFrames, _Mapping]] = ..., finished: _Optional[_Union[EncodeFinished, _Mapping]] = ..., ready: _Optional[_Union[EncodeReady, _Mapping]] = ..., progress: _Optional[_Union[SpeechProgress, _Mapping]] = ...) -> None: ...

class EncodeReady(_message.Message):
    __slots__ = ("code_format", "frame_samples", "sample_rate_hz", "queue_wait")
    CODE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    FRAME_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    QUEUE_WAIT_FIELD_NUMBER: _ClassVar[int]
    code_format: _audio_pb2.CodeFormat
    frame_samples: int
    sample_rate_hz: int
    queue_wait: _duration_pb2.Duration
    def __init__(self, code_format: _Optional[_Union[_audio_pb2.CodeFormat, _Mapping]] = ..., frame_samples: _Optional[int] = ..., sample_rate_hz: _Optional[int] = ..., queue_wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class EncodeFinished(_message.Message):
    __slots__ = ("sample_count", "frame_count")
    SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    FRAME_COUNT_FIELD_NUMBER: _ClassVar[int]
    sample_count: int
    frame_count: int
    def __init__(self, sample_count: _Optional[int] = ..., frame_count: _Optional[int] = ...) -> None: ...

class ListCodecsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListCodecsResponse(_message.Message):
    __slots__ = ("codecs",)
    CODECS_FIELD_NUMBER: _ClassVar[int]
    codecs: _containers.RepeatedCompositeFieldContainer[Codec]
    def __init__(self, codecs: _Optional[_Iterable[_Union[Codec, _Mapping]]] = ...) -> None: ...

class Codec(_message.Message):
    __slots__ = ("name", "codebook_count", "codebook_size", "control_codes", "frame_rate", "frame_samples", "sample_rate_hz", "decodes", "encodes", "voices")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CODEBOOK_COUNT_FIELD_NUMBER: _ClassVar[int]
    CODEBOOK_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTROL_CODES_FIELD_NUMBER: _ClassVar[int]
    FRAME_RATE_FIELD_NUMBER: _ClassVar[int]
    FRAME_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    DECODES_FIELD_NUMBER: _ClassVar[int]
    ENCODES_FIELD_NUMBER: _ClassVar[int]
    VOICES_FIELD_NUMBER: _ClassVar[int]
    name: str
    codebook_count: int
    codebook_size: int
    control_codes: _containers.RepeatedScalarFieldContainer[int]
    frame_rate: float
    frame_samples: int
    sample_rate_hz: int
    decodes: bool
    encodes: bool
    voices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., codebook_count: _Optional[int] = ..., codebook_size: _Optional[int] = ..., control_codes: _Optional[_Iterable[int]] = ..., frame_rate: _Optional[float] = ..., frame_samples: _Optional[int] = ..., sample_rate_hz: _Optional[int] = ..., decodes: _Optional[bool] = ..., encodes: _Optional[bool] = ..., voices: _Optional[_Iterable[str]] = ...) -> None: ...

class GetSlotsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetSlotsResponse(_message.Message):
    __slots__ = ("total", "busy", "queued", "cost", "groups")
    class CostEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    total: int
    busy: int
    queued: int
    cost: _containers.ScalarMap[str, float]
    groups: _containers.RepeatedCompositeFieldContainer[SlotGroup]
    def __init__(self, total: _Optional[int] = ..., busy: _Optional[int] = ..., queued: _Optional[int] = ..., cost: _Optional[_Mapping[str, float]] = ..., groups: _Optional[_Iterable[_Union[SlotGroup, _Mapping]]] = ...) -> None: ...

class SlotGroup(_message.Message):
    __slots__ = ("name", "total", "busy", "queued", "models")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    name: str
    total: int
    busy: int
    queued: int
    models: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., total: _Optional[int] = ..., busy: _Optional[int] = ..., queued: _Optional[int] = ..., models: _Optional[_Iterable[str]] = ...) -> None: ...

class Voice(_message.Message):
    __slots__ = ("id", "display_name", "kind", "models", "language", "sample_rate_hz", "created_at", "aliases", "is_default", "tenant")
    ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    id: str
    display_name: str
    kind: VoiceKind
    models: _containers.RepeatedScalarFieldContainer[str]
    language: str
    sample_rate_hz: int
    created_at: _timestamp_pb2.Timestamp
    aliases: _containers.RepeatedScalarFieldContainer[str]
    is_default: bool
    tenant: str
    def __init__(self, id: _Optional[str] = ..., display_name: _Optional[str] = ..., kind: _Optional[_Union[VoiceKind, str]] = ..., models: _Optional[_Iterable[str]] = ..., language: _Optional[str] = ..., sample_rate_hz: _Optional[int] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., aliases: _Optional[_Iterable[str]] = ..., is_default: _Optional[bool] = ..., tenant: _Optional[str] = ...) -> None: ...

class ListVoicesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListVoicesResponse(_message.Message):
    __slots__ = ("voices",)
    VOICES_FIELD_NUMBER: _ClassVar[int]
    voices: _containers.RepeatedCompositeFieldContainer[Voice]
    def __init__(self, voices: _Optional[_Iterable[_Union[Voice, _Mapping]]] = ...) -> None: ...

class GetVoiceRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class GetVoiceResponse(_message.Message):
    __slots__ = ("voice",)
    VOICE_FIELD_NUMBER: _ClassVar[int]
    voice: Voice
    def __init__(self, voice: _Optional[_Union[Voice, _Mapping]] = ...) -> None: ...

class CreateVoiceRequest(_message.Message):
    __slots__ = ("config", "audio")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    config: CreateVoiceConfig
    audio: bytes
    def __init__(self, config: _Optional[_Union[CreateVoiceConfig, _Mapping]] = ..., audio: _Optional[bytes] = ...) -> None: ...

class CreateVoiceConfig(_message.Message):
    __slots__ = ("display_name", "format", "transcript", "consent", "language")
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    CONSENT_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    display_name: str
    format: _audio_pb2.AudioFormat
    transcript: str
    consent: VoiceConsent
    language: str
    def __init__(self, display_name: _Optional[str] = ..., format: _Optional[_Union[_audio_pb2.AudioFormat, _Mapping]] = ..., transcript: _Optional[str] = ..., consent: _Optional[_Union[VoiceConsent, _Mapping]] = ..., language: _Optional[str] = ...) -> None: ...

class VoiceConsent(_message.Message):
    __slots__ = ("statement", "speaker", "granted_at", "evidence_sha256")
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    SPEAKER_FIELD_NUMBER: _ClassVar[int]
    GRANTED_AT_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_SHA256_FIELD_NUMBER: _ClassVar[int]
    statement: str
    speaker: str
    granted_at: _timestamp_pb2.Timestamp
    evidence_sha256: bytes
    def __init__(self, statement: _Optional[str] = ..., speaker: _Optional[str] = ..., granted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., evidence_sha256: _Optional[bytes] = ...) -> None: ...

class CreateVoiceResponse(_message.Message):
    __slots__ = ("voice",)
    VOICE_FIELD_NUMBER: _ClassVar[int]
    voice: Voice
    def __init__(self, voice: _Optional[_Union[Voice, _Mapping]] = ...) -> None: ...

class DeleteVoiceRequest(_message.Message):
    __slots__ = ("id", "drain")
    ID_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    id: str
    drain: bool
    def __init__(self, id: _Optional[str] = ..., drain: _Optional[bool] = ...) -> None: ...

class DeleteVoiceResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
