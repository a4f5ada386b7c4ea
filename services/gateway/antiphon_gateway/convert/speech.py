"""Speech synthesis: domain configuration to protobuf, protobuf responses to domain events."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.common.v1 import audio_pb2
from antiphon.vocoder.v1 import vocoder_service_pb2 as pb

from antiphon_gateway.convert.common import (
    audio_format_from_proto,
    audio_format_to_proto,
    code_format_to_proto,
    seconds,
)
from antiphon_gateway.domain import speech


def config_to_proto(config: speech.SpeechConfig) -> pb.StreamSpeechRequest:
    """The first message of a speech stream."""
    message = pb.SpeechConfig(
        voice=config.voice,
        model=config.model,
        input_kind=(
            pb.SPEECH_INPUT_KIND_TEXT if config.code_format is None else pb.SPEECH_INPUT_KIND_CODES
        ),
        speed=config.speed,
        language=config.language,
        chunking=pb.CHUNKING_SENTENCE if config.whole_sentences else pb.CHUNKING_CLAUSE,
        unknown_voice=(
            pb.UNKNOWN_VOICE_DEFAULT if config.default_when_unknown else pb.UNKNOWN_VOICE_ERROR
        ),
        instructions=config.instructions,
        exact_container=config.exact_container,
    )
    if config.code_format is not None:
        message.code_format.CopyFrom(code_format_to_proto(config.code_format))
    if config.output_format is not None:
        message.output_format.CopyFrom(audio_format_to_proto(config.output_format))
    return pb.StreamSpeechRequest(config=message)


def text_to_proto(text: str) -> pb.StreamSpeechRequest:
    """The next piece of the text."""
    return pb.StreamSpeechRequest(text=text)


def codes_to_proto(codes: Sequence[int], form: speech.CodeFormat) -> pb.StreamSpeechRequest:
    """The next codes: whole frames."""
    frames = audio_pb2.CodeFrames(
        codes=codes, codebook_count=form.codebook_count, frame_rate=form.frame_rate
    )
    return pb.StreamSpeechRequest(codes=frames)


def flush_to_proto() -> pb.StreamSpeechRequest:
    """Speak what is buffered."""
    return pb.StreamSpeechRequest(flush=pb.SpeechFlush())


def clear_to_proto() -> pb.StreamSpeechRequest:
    """Drop what has not been spoken."""
    return pb.StreamSpeechRequest(clear=pb.SpeechClear())


def response_to_event(message: pb.StreamSpeechResponse) -> speech.SpeechEvent | None:
    """The event of one response; None for a kind that this build does not know."""
    kind = message.WhichOneof("message")
    if kind == "audio":
        audio = message.audio
        return speech.AudioChunk(audio.data, audio.first_sample, audio.sample_count)
    if kind == "mark":
        return speech.SpeechMark(message.mark.input_offset, message.mark.sample)
    if kind == "ready":
        ready = message.ready
        return speech.SpeechReady(
            voice=ready.voice,
            model=ready.model,
            voice_fallback=ready.voice_fallback,
            output_format=audio_format_from_proto(ready.output_format),
            mime_type=ready.mime_type,
            queue_wait=seconds(ready.queue_wait),
        )
    if kind == "progress":
        return speech.SpeechProgress(seconds(message.progress.elapsed))
    if kind == "finished":
        finished = message.finished
        return speech.SpeechFinished(
            reason=_enum_name(pb.SpeechFinishReason, "SPEECH_FINISH_REASON_", finished.reason),
            sample_count=finished.sample_count,
            input_units=finished.input_units,
            audio_seconds=seconds(finished.audio_duration),
            first_audio_seconds=seconds(finished.time_to_first_audio),
        )
    return None


def voice_from_proto(message: pb.Voice) -> speech.Voice:
    """One voice."""
    return speech.Voice(
        id=message.id,
        name=message.display_name or message.id,
        kind=_enum_name(pb.VoiceKind, "VOICE_KIND_", message.kind),
        models=tuple(message.models),
        language=message.language,
        sample_rate=message.sample_rate_hz,
        created_at=message.created_at.seconds,
        aliases=tuple(message.aliases),
        is_default=message.is_default,
        tenant=message.tenant,
    )


def new_voice_to_proto(voice: speech.NewVoice) -> pb.CreateVoiceRequest:
    """The first message of a voice upload."""
    config = pb.CreateVoiceConfig(display_name=voice.name)
    if voice.consent is not None:
        config.consent.statement = voice.consent.statement
        config.consent.speaker = voice.consent.speaker
        config.consent.granted_at.FromSeconds(voice.consent.granted_at)
        config.consent.evidence_sha256 = voice.consent.evidence_sha256
    return pb.CreateVoiceRequest(config=config)


def sample_to_proto(data: bytes) -> pb.CreateVoiceRequest:
    """The next bytes of a voice's sample."""
    return pb.CreateVoiceRequest(audio=data)


def _enum_name(enum: type, prefix: str, number: int) -> str:
    names = {value: name for name, value in enum.items()}
    return names.get(number, "unspecified").removeprefix(prefix).lower()
