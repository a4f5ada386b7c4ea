"""What streams of speech codes ask for: checked configurations and checked frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from antiphon_core.errors import InvalidArgument, NotFound, Unimplemented
from numpy.typing import NDArray

from antiphon_vocoder.codec_messages import CodecInfo, Stage
from antiphon_vocoder.formats import Encoding
from antiphon_vocoder.formats.encode import resolve_rate
from antiphon_vocoder.speech import SpeechConfig

MAX_CODES = 1 << 16
"""Codes in one message."""
_RATE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class CodeFormat:
    """Codec, codebooks and frame rate as a caller names them; empty and 0 are defaults."""

    codec: str = ""
    codebook_count: int = 0
    frame_rate: float = 0.0


@dataclass(frozen=True)
class CodeFrames:
    """A run of frames as a caller sent it."""

    codes: Sequence[int]
    codebook_count: int
    frame_rate: float


@dataclass(frozen=True)
class CodePlan:
    """A checked configuration of a stream that decodes codes."""

    codec: CodecInfo
    codebooks: int
    encoding: Encoding
    rate: int
    exact_container: bool = False
    voice: str = ""
    voice_fallback: bool = False


@dataclass(frozen=True)
class EncodePlan:
    """A checked configuration of a stream that encodes audio."""

    codec: CodecInfo
    codebooks: int
    encoding: Encoding
    rate: int
    """Samples a second of the input."""


def no_codec() -> Unimplemented:
    """Why a service without codecs refuses whatever needs one."""
    return Unimplemented(
        "this service has no codec: the setting [vocoder] codecs names none",
        field="config.code_format.codec",
    )


class CodecCatalog:
    """The codecs that are served, and the voices bound to one.

    Args:
        codecs: by name, the default first; none where the service has no codec.
        voices: by voice id the codecs whose codes it speaks, the preferred first.
    """

    def __init__(
        self, codecs: Mapping[str, CodecInfo], voices: Mapping[str, Sequence[str]]
    ) -> None:
        self.codecs = codecs
        self.voices = dict(voices)

    def including(self, voice: str, codecs: Sequence[str]) -> CodecCatalog:
        """The catalog with one more voice, of those of its codecs that are served, or of all."""
        served = [name for name in codecs if name in self.codecs]
        return CodecCatalog(self.codecs, {**self.voices, voice: served or codecs})

    def bound_to(self, codec: str) -> list[str]:
        """Ids of the voices that speak codes of this codec."""
        return [voice for voice, codecs in self.voices.items() if codec in codecs]

    def choose(
        self, wanted: CodeFormat, stage: Stage, *, bound: Sequence[str] = ()
    ) -> tuple[CodecInfo, int]:
        """The codec of a stream and how many of its codebooks.

        Args:
            bound: the codecs of the stream's voice; empty without one.

        Raises:
            Unimplemented: no codec is served.
            NotFound: MODEL_NOT_FOUND, listing the codecs.
            InvalidArgument: naming the field of ``config.code_format``.
        """
        if not self.codecs:
            raise no_codec()
        name = wanted.codec or next(iter(bound or self.codecs))
        field = "config.code_format"
        if name not in self.codecs:
            raise NotFound(
                f"there is no codec {name[:64]!r}",
                reason="MODEL_NOT_FOUND",
                field=f"{field}.codec",
                allowed=list(self.codecs),
            )
        if bound and name not in bound:
            raise InvalidArgument(
                f"the voice speaks codes of {', '.join(bound)}, not of {name}",
                field=f"{field}.codec",
                allowed=bound,
            )
        codec = self.codecs[name]
        if stage not in codec.stages:
            able = [other.name for other in self.codecs.values() if stage in other.stages]
            raise InvalidArgument(
                f"the codec {name} does not {stage} streams",
                reason="UNSUPPORTED_OPTION",
                field=f"{field}.codec",
                allowed=able,
            )
        _check_frame_rate(wanted.frame_rate or float(codec.frame_rate), codec, field)
        count = wanted.codebook_count
        if not 0 <= count <= codec.codebook_count:
            raise InvalidArgument(
                f"{name} has {codec.codebook_count} codebooks, got {count}",
                reason="INVALID_CODES",
                field=f"{field}.codebook_count",
                metadata={"limit": f"1..{codec.codebook_count}", "observed": str(count)},
            )
        return codec, count or codec.codebook_count

    def voice(self, name: str, *, fall_back: bool) -> tuple[str, bool]:
        """The voice of a stream of codes, empty for none, and whether another was asked for.

        Raises:
            NotFound: VOICE_NOT_FOUND, listing the voices that speak codes.
        """
        if not name or name in self.voices:
            return name, False
        if fall_back:
            return "", True
        raise NotFound(
            f"no voice {name[:64]!r} speaks codes; leave it empty to decode them without one",
            reason="VOICE_NOT_FOUND",
            field="config.voice",
            allowed=sorted(self.voices),
        )


def plan_spoken_codes(config: SpeechConfig, wanted: CodeFormat, catalog: CodecCatalog) -> CodePlan:
    """Checks the configuration of StreamSpeech with codes; nothing is clamped or ignored.

    Raises:
        InvalidArgument, NotFound, Unimplemented: naming the field.
    """
    voice, fallback = catalog.voice(config.voice, fall_back=config.default_for_unknown_voice)
    codec, codebooks = catalog.choose(wanted, Stage.DECODE, bound=catalog.voices.get(voice, ()))
    if config.model and config.model != codec.name:
        raise NotFound(
            f"there is no speech model {config.model[:64]!r} for codes of {codec.name}",
            reason="MODEL_NOT_FOUND",
            field="config.model",
            allowed=(codec.name,),
        )
    unsupported = {
        "speed": config.speed not in (0, 1),
        "language": bool(config.language),
        "instructions": bool(config.instructions),
        "chunking": config.whole_sentences,
    }
    for name, given in unsupported.items():
        if given:
            raise InvalidArgument(
                f"codes are spoken as they are: {name} does not apply to them",
                reason="UNSUPPORTED_OPTION",
                field=f"config.{name}",
            )
    if config.exact_container and config.encoding is not Encoding.WAV:
        raise InvalidArgument(
            f"exact_container applies to wav only, the format is {config.encoding}",
            field="config.exact_container",
        )
    return CodePlan(
        codec=codec,
        codebooks=codebooks,
        encoding=config.encoding,
        rate=_output_rate(config.encoding, config.sample_rate, codec),
        exact_container=config.exact_container,
        voice=voice,
        voice_fallback=fallback,
    )


def plan_decoded_codes(
    wanted: CodeFormat, encoding: Encoding, sample_rate: int, catalog: CodecCatalog
) -> CodePlan:
    """Checks the configuration of DecodeCodes; errors as ``plan_spoken_codes``."""
    codec, codebooks = catalog.choose(wanted, Stage.DECODE)
    rate = _output_rate(encoding, sample_rate, codec)
    return CodePlan(codec=codec, codebooks=codebooks, encoding=encoding, rate=rate)


def plan_encoded_audio(
    wanted: CodeFormat, encoding: Encoding, sample_rate: int, catalog: CodecCatalog
) -> EncodePlan:
    """Checks the configuration of EncodeAudio; errors as ``plan_spoken_codes``."""
    codec, codebooks = catalog.choose(wanted, Stage.ENCODE)
    return EncodePlan(codec, codebooks, encoding, sample_rate or codec.sample_rate)


def checked_frames(frames: CodeFrames, plan: CodePlan) -> NDArray[np.int32]:
    """The frames (n, codebooks) of one message.

    Raises:
        InvalidArgument: the count, the rate, the length or a code is wrong; a wrong code is named
            with its place in the message.
    """
    if frames.codebook_count != plan.codebooks:
        raise InvalidArgument(
            f"the stream has {plan.codebooks} codebooks, this message {frames.codebook_count}",
            reason="INVALID_CODES",
            field="codes.codebook_count",
            metadata={"limit": str(plan.codebooks), "observed": str(frames.codebook_count)},
        )
    _check_frame_rate(frames.frame_rate, plan.codec, "codes")
    if len(frames.codes) > MAX_CODES:
        raise InvalidArgument(
            f"a message has at most {MAX_CODES} codes; send them in several",
            reason="TOO_LARGE",
            field="codes.codes",
            metadata={"limit": str(MAX_CODES), "observed": str(len(frames.codes))},
        )
    if len(frames.codes) % plan.codebooks:
        raise InvalidArgument(
            f"{len(frames.codes)} codes are not whole frames of {plan.codebooks}",
            reason="INVALID_CODES",
            field="codes.codes",
        )
    codes = np.fromiter(frames.codes, np.int32, len(frames.codes))
    _check_codes(codes, plan)
    return codes.reshape(-1, plan.codebooks)


def _check_codes(codes: NDArray[np.int32], plan: CodePlan) -> None:
    codec = plan.codec
    wrong = (codes < 0) | (codes >= codec.codebook_size)
    if codec.control_codes and wrong.any():
        wrong &= ~np.isin(codes, codec.control_codes)
    if not wrong.any():
        return
    place = int(wrong.argmax())
    frame, codebook = divmod(place, plan.codebooks)
    raise InvalidArgument(
        f"code {codes[place]} of frame {frame}, codebook {codebook} of this message is outside"
        f" 0..{codec.codebook_size - 1}, the codebook of {codec.name}",
        reason="INVALID_CODES",
        field=f"codes.codes[{place}]",
        metadata={"limit": f"0..{codec.codebook_size - 1}", "observed": str(codes[place])},
    )


def _check_frame_rate(rate: float, codec: CodecInfo, field: str) -> None:
    right = float(codec.frame_rate)
    if not abs(rate - right) <= _RATE_TOLERANCE * right:
        raise InvalidArgument(
            f"{codec.name} has {right:g} frames a second, got {rate:g}",
            reason="INVALID_CODES",
            field=f"{field}.frame_rate",
            metadata={"limit": f"{right:g}", "observed": f"{rate:g}"},
        )


def _output_rate(encoding: Encoding, wanted: int, codec: CodecInfo) -> int:
    return resolve_rate(
        encoding, wanted, codec.sample_rate, field="config.output_format.sample_rate_hz"
    )


@dataclass(frozen=True)
class EncodeReady:
    """The slot of an encode stream is taken."""

    plan: EncodePlan
    queue_wait: float


@dataclass(frozen=True)
class EncodedFrames:
    """Codes of whole frames."""

    codes: NDArray[np.int32]
    """(n, codebooks)"""
    frame_rate: float


@dataclass(frozen=True)
class EncodeFinished:
    """The end of an encode stream."""

    sample_count: int
    """At the codec's rate, before the tail was padded."""
    frame_count: int
