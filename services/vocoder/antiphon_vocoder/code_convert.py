"""Between the wire's messages and the plain values of streams of codes."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.common.v1 import audio_pb2
from antiphon.vocoder.v1 import vocoder_service_pb2 as pb

from antiphon_vocoder.codec_messages import CodecInfo, Stage
from antiphon_vocoder.codes import (
    CodecCatalog,
    CodeFormat,
    CodeFrames,
    CodePlan,
    EncodedFrames,
    EncodeFinished,
    EncodePlan,
    EncodeReady,
    plan_decoded_codes,
    plan_encoded_audio,
    plan_spoken_codes,
)
from antiphon_vocoder.convert import duration, known_encoding, speech_config, speech_response
from antiphon_vocoder.encode_session import EncodeEvent
from antiphon_vocoder.speech import Progress, SpeechEvent


def spoken_codes_plan(message: pb.SpeechConfig, catalog: CodecCatalog) -> CodePlan:
    """The plan of StreamSpeech with codes; errors as ``plan_spoken_codes``."""
    return plan_spoken_codes(speech_config(message), _code_format(message.code_format), catalog)


def decode_plan(message: pb.DecodeConfig, catalog: CodecCatalog) -> CodePlan:
    """The plan of DecodeCodes; errors as ``plan_decoded_codes``."""
    output = message.output_format
    encoding = known_encoding(output, "config.output_format")
    wanted = _code_format(message.code_format)
    return plan_decoded_codes(wanted, encoding, output.sample_rate_hz, catalog)


def encode_plan(message: pb.EncodeConfig, catalog: CodecCatalog) -> EncodePlan:
    """The plan of EncodeAudio; errors as ``plan_encoded_audio``."""
    source = message.input_format
    encoding = known_encoding(source, "config.input_format")
    wanted = _code_format(message.code_format)
    return plan_encoded_audio(wanted, encoding, source.sample_rate_hz, catalog)


def _code_format(message: audio_pb2.CodeFormat) -> CodeFormat:
    return CodeFormat(message.codec, message.codebook_count, message.frame_rate)


def code_frames(message: audio_pb2.CodeFrames) -> CodeFrames:
    """The frames of one message, unchecked."""
    return CodeFrames(message.codes, message.codebook_count, message.frame_rate)


def codec_message(codec: CodecInfo, voices: Sequence[str]) -> pb.Codec:
    """A codec of the list, with the ids of the voices that are bound to it."""
    return pb.Codec(
        name=codec.name,
        codebook_count=codec.codebook_count,
        codebook_size=codec.codebook_size,
        control_codes=codec.control_codes,
        frame_rate=float(codec.frame_rate),
        frame_samples=codec.frame_samples,
        sample_rate_hz=codec.sample_rate,
        decodes=Stage.DECODE in codec.stages,
        encodes=Stage.ENCODE in codec.stages,
        voices=voices,
    )


def decode_response(event: SpeechEvent) -> pb.DecodeCodesResponse:
    """One event of a decode stream."""
    spoken = speech_response(event)
    kind = spoken.WhichOneof("message")
    return pb.DecodeCodesResponse(**{kind: getattr(spoken, kind)} if kind else {})


def encode_response(event: EncodeEvent) -> pb.EncodeAudioResponse:
    """One event of an encode stream."""
    match event:
        case EncodedFrames(codes, frame_rate):
            frames = audio_pb2.CodeFrames(
                codes=codes.reshape(-1).tolist(),
                codebook_count=codes.shape[1],
                frame_rate=frame_rate,
            )
            return pb.EncodeAudioResponse(codes=frames)
        case EncodeReady(plan, queue_wait):
            return pb.EncodeAudioResponse(ready=_encode_ready(plan, queue_wait))
        case Progress(elapsed):
            return pb.EncodeAudioResponse(progress=pb.SpeechProgress(elapsed=duration(elapsed)))
        case EncodeFinished(sample_count, frame_count):
            finished = pb.EncodeFinished(sample_count=sample_count, frame_count=frame_count)
            return pb.EncodeAudioResponse(finished=finished)


def _encode_ready(plan: EncodePlan, queue_wait: float) -> pb.EncodeReady:
    return pb.EncodeReady(
        code_format=audio_pb2.CodeFormat(
            codec=plan.codec.name,
            codebook_count=plan.codebooks,
            frame_rate=float(plan.codec.frame_rate),
        ),
        frame_samples=plan.codec.frame_samples,
        sample_rate_hz=plan.codec.sample_rate,
        queue_wait=duration(queue_wait),
    )
