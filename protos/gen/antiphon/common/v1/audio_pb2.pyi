from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AudioEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUDIO_ENCODING_UNSPECIFIED: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_PCM16: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_WAV: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_MP3: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_OPUS: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_FLAC: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_AAC: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_PCMU: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_PCMA: _ClassVar[AudioEncoding]
AUDIO_ENCODING_UNSPECIFIED: AudioEncoding
AUDIO_ENCODING_PCM16: AudioEncoding
AUDIO_ENCODING_WAV: AudioEncoding
AUDIO_ENCODING_MP3: AudioEncoding
AUDIO_ENCODING_OPUS: AudioEncoding
AUDIO_ENCODING_FLAC: AudioEncoding
AUDIO_ENCODING_AAC: AudioEncoding
AUDIO_ENCODING_PCMU: AudioEncoding
AUDIO_ENCODING_PCMA: AudioEncoding

class AudioFormat(_message.Message):
    __slots__ = ("encoding", "sample_rate_hz")
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    encoding: AudioEncoding
    sample_rate_hz: int
    def __init__(self, encoding: _Optional[_Union[AudioEncoding, str]] = ..., sample_rate_hz: _Optional[int] = ...) -> None: ...

class CodeFrames(_message.Message):
    __slots__ = ("codes", "codebook_count", "frame_rate")
    CODES_FIELD_NUMBER: _ClassVar[int]
    CODEBOOK_COUNT_FIELD_NUMBER: _ClassVar[int]
    FRAME_RATE_FIELD_NUMBER: _ClassVar[int]
    codes: _containers.RepeatedScalarFieldContainer[int]
    codebook_count: int
    frame_rate: float
    def __init__(self, codes: _Optional[_Iterable[int]] = ..., codebook_count: _Optional[int] = ..., frame_rate: _Optional[float] = ...) -> None: ...

class CodeFormat(_message.Message):
    __slots__ = ("codec", "codebook_count", "frame_rate")
    CODEC_FIELD_NUMBER: _ClassVar[int]
    CODEBOOK_COUNT_FIELD_NUMBER: _ClassVar[int]
    FRAME_RATE_FIELD_NUMBER: _ClassVar[int]
    codec: str
    codebook_count: int
    frame_rate: float
    def __init__(self, codec: _Optional[str] = ..., codebook_count: _Optional[int] = ..., frame_rate: _Optional[float] = ...) -> None: ...
