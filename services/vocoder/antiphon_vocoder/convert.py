"""Between the wire's messages and this service's plain values."""

from __future__ import annotations

from antiphon.common.v1 import audio_pb2
from antiphon.vocoder.v1 import vocoder_service_pb2 as pb
from antiphon_core.errors import InvalidArgument
from google.protobuf.duration_pb2 import Duration

from antiphon_vocoder.formats import Encoding
from antiphon_vocoder.formats.encode import mime_type
from antiphon_vocoder.speech import (
    Audio,
    Finished,
    FinishReason,
    Mark,
    Progress,
    Ready,
    SpeechConfig,
    SpeechEvent,
)
from antiphon_vocoder.voices import Voice

MAX_TEXT_BYTES = 64 * 1024

_ENCODINGS = {
    audio_pb2.AUDIO_ENCODING_UNSPECIFIED: Encoding.PCM16,
    audio_pb2.AUDIO_ENCODING_PCM16: Encoding.PCM16,
    audio_pb2.AUDIO_ENCODING_WAV: Encoding.WAV,
    audio_pb2.AUDIO_ENCODING_MP3: Encoding.MP3,
    audio_pb2.AUDIO_ENCODING_OPUS: Encoding.OPUS,
    audio_pb2.AUDIO_ENCODING_FLAC: Encoding.FLAC,
    audio_pb2.AUDIO_ENCODING_AAC: Encoding.AAC,
    audio_pb2.AUDIO_ENCODING_PCMU: Encoding.PCMU,
    audio_pb2.AUDIO_ENCODING_PCMA: Encoding.PCMA,
}
_WIRE_ENCODINGS = {encoding: number for number, encoding in _ENCODINGS.items()}
_INPUT_KINDS = {
    pb.SPEECH_INPUT_KIND_UNSPECIFIED: False,
    pb.SPEECH_INPUT_KIND_TEXT: False,
    pb.SPEECH_INPUT_KIND_CODES: True,
}
_CHUNKINGS = {
    pb.CHUNKING_UNSPECIFIED: False,
    pb.CHUNKING_CLAUSE: False,
    pb.CHUNKING_SENTENCE: True,
}
_FINISH_REASONS = {
    FinishReason.COMPLETE: pb.SPEECH_FINISH_REASON_COMPLETE,
    FinishReason.LENGTH: pb.SPEECH_FINISH_REASON_LENGTH,
    FinishReason.VOICE_DELETED: pb.SPEECH_FINISH_REASON_VOICE_DELETED,
}
_UNKNOWN_VOICES = {
    pb.UNKNOWN_VOICE_UNSPECIFIED: False,
    pb.UNKNOWN_VOICE_ERROR: False,
    pb.UNKNOWN_VOICE_DEFAULT: True,
}


def speech_config(message: pb.SpeechConfig) -> SpeechConfig:
    """The configuration of a speech stream.

    Raises:
        InvalidArgument: an enum has a number that this build does not know.
    """
    return SpeechConfig(
        voice=message.voice,
        model=message.model,
        codes=_known(_INPUT_KINDS, message.input_kind, pb.SpeechInputKind, "config.input_kind"),
        encoding=known_encoding(message.output_format, "config.output_format"),
        sample_rate=message.output_format.sample_rate_hz,
        speed=message.speed,
        language=message.language,
        whole_sentences=_known(_CHUNKINGS, message.chunking, pb.Chunking, "config.chunking"),
        noise_key=message.noise_key if message.HasField("noise_key") else None,
        default_for_unknown_voice=_known(
            _UNKNOWN_VOICES, message.unknown_voice, pb.UnknownVoice, "config.unknown_voice"
        ),
        instructions=message.instructions,
        exact_container=message.exact_container,
    )


def known_encoding(message: audio_pb2.AudioFormat, field: str) -> Encoding:
    """The encoding of a format; InvalidArgument for a number that this build does not know."""
    return _known(_ENCODINGS, message.encoding, audio_pb2.AudioEncoding, f"{field}.encoding")


def _known(table, number, enum, field: str):
    if number not in table:
        raise InvalidArgument(f"{field} has no value {number}", field=field, allowed=enum.keys())
    return table[number]


def speech_text(message: pb.StreamSpeechRequest) -> str:
    """The text of a piece.

    Raises:
        InvalidArgument: TOO_LARGE.
    """
    if len(message.text) > MAX_TEXT_BYTES or len(message.text.encode()) > MAX_TEXT_BYTES:
        raise InvalidArgument(
            f"a piece of text is at most {MAX_TEXT_BYTES} bytes; send it in several",
            reason="TOO_LARGE",
            field="text",
            metadata={"limit": str(MAX_TEXT_BYTES)},
        )
    return message.text


def speech_response(event: SpeechEvent) -> pb.StreamSpeechResponse:
    """One event of a speech stream."""
    match event:
        case Audio(data, first_sample, sample_count):
            audio = pb.AudioChunk(data=data, first_sample=first_sample, sample_count=sample_count)
            return pb.StreamSpeechResponse(audio=audio)
        case Mark(input_offset, sample):
            mark = pb.SpeechMark(input_offset=input_offset, sample=sample)
            return pb.StreamSpeechResponse(mark=mark)
        case Ready():
            return pb.StreamSpeechResponse(ready=_ready(event))
        case Progress(elapsed):
            return pb.StreamSpeechResponse(progress=pb.SpeechProgress(elapsed=duration(elapsed)))
        case Finished():
            return pb.StreamSpeechResponse(finished=_finished(event))


def _ready(event: Ready) -> pb.SpeechReady:
    return pb.SpeechReady(
        voice=event.voice,
        model=event.model,
        voice_fallback=event.voice_fallback,
        output_format=audio_pb2.AudioFormat(
            encoding=_WIRE_ENCODINGS[event.encoding], sample_rate_hz=event.rate
        ),
        queue_wait=duration(event.queue_wait),
        mime_type=mime_type(event.encoding, event.rate),
    )


def _finished(event: Finished) -> pb.SpeechFinished:
    message = pb.SpeechFinished(
        reason=_FINISH_REASONS[event.reason],
        sample_count=event.sample_count,
        input_units=event.input_units,
        duration=duration(event.duration),
        audio_duration=duration(event.audio_seconds),
        dropped_symbols=event.dropped_symbols,
    )
    if event.time_to_first_audio is not None:
        message.time_to_first_audio.CopyFrom(duration(event.time_to_first_audio))
    return message


def voice_message(voice: Voice) -> pb.Voice:
    """A voice of the list."""
    return pb.Voice(
        id=voice.id,
        display_name=voice.display_name,
        kind=pb.VOICE_KIND_PRESET,
        models=voice.models,
        language=voice.language,
        sample_rate_hz=voice.sample_rate,
        aliases=voice.aliases,
        is_default=voice.is_default,
    )


def duration(seconds: float) -> Duration:
    """Seconds on the wire."""
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message
