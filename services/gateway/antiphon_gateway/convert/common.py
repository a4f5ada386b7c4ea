"""Conversions that several services share."""

from __future__ import annotations

from antiphon.common.v1 import audio_pb2
from google.protobuf.duration_pb2 import Duration

from antiphon_gateway.domain.speech import ENCODINGS, AudioFormat, CodeFormat

_ENCODING_NUMBERS = {
    name: audio_pb2.AudioEncoding.Value(f"AUDIO_ENCODING_{name.upper()}") for name in ENCODINGS
}
_ENCODING_NAMES = {number: name for name, number in _ENCODING_NUMBERS.items()}


def audio_format_to_proto(audio_format: AudioFormat) -> audio_pb2.AudioFormat:
    """An empty encoding becomes UNSPECIFIED.

    Raises:
        KeyError: an encoding that is not in ENCODINGS, a defect of the caller.
    """
    encoding = _ENCODING_NUMBERS[audio_format.encoding] if audio_format.encoding else 0
    return audio_pb2.AudioFormat(
        encoding=audio_pb2.AudioEncoding.Name(encoding), sample_rate_hz=audio_format.sample_rate
    )


def audio_format_from_proto(message: audio_pb2.AudioFormat) -> AudioFormat:
    """An unknown encoding becomes the empty string."""
    return AudioFormat(_ENCODING_NAMES.get(message.encoding, ""), message.sample_rate_hz)


def code_format_to_proto(code_format: CodeFormat) -> audio_pb2.CodeFormat:
    """What codes mean."""
    return audio_pb2.CodeFormat(
        codec=code_format.codec,
        codebook_count=code_format.codebook_count,
        frame_rate=code_format.frame_rate,
    )


def code_format_from_proto(message: audio_pb2.CodeFormat) -> CodeFormat:
    """What codes mean."""
    return CodeFormat(message.codec, message.codebook_count, message.frame_rate)


def seconds(duration: Duration) -> float:
    """A duration in seconds."""
    return duration.seconds + duration.nanos / 1e9


def milliseconds_to_duration(value: int) -> Duration:
    """A duration of so many milliseconds."""
    return Duration(seconds=value // 1000, nanos=value % 1000 * 1_000_000)
