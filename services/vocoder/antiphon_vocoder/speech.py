"""What a speech stream asks for and what it answers, as plain values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto

from antiphon_core.errors import InvalidArgument, NotFound

from antiphon_vocoder.formats import Encoding
from antiphon_vocoder.formats.encode import resolve_rate
from antiphon_vocoder.voices import MODEL, Voice, VoiceCatalog

MIN_SPEED = 0.25
MAX_SPEED = 4.0


@dataclass(frozen=True)
class SpeechConfig:
    """A stream's configuration as the caller sent it."""

    voice: str = ""
    model: str = ""
    codes: bool = False
    """The input is speech codes instead of text."""
    encoding: Encoding = Encoding.PCM16
    sample_rate: int = 0
    speed: float = 0.0
    language: str = ""
    whole_sentences: bool = False
    noise_key: int | None = None
    default_for_unknown_voice: bool = False
    instructions: str = ""
    exact_container: bool = False


@dataclass(frozen=True)
class SpeechPlan:
    """A configuration that was checked and completed."""

    voice: Voice
    voice_fallback: bool
    model: str
    encoding: Encoding
    rate: int
    speed: float
    whole_sentences: bool
    noiseless: bool
    exact_container: bool


def plan_speech(config: SpeechConfig, catalog: VoiceCatalog) -> SpeechPlan:
    """Resolves the voice and checks every field; nothing is clamped.

    Raises:
        InvalidArgument, NotFound: naming the field, such as ``config.speed``.
    """
    voice, fallback = _voice(config, catalog)
    if config.model and config.model not in voice.models:
        raise NotFound(
            f"there is no speech model {config.model[:64]!r} for the voice {voice.id}",
            reason="MODEL_NOT_FOUND",
            field="config.model",
            allowed=voice.models,
        )
    if config.instructions:
        raise InvalidArgument(
            f"the model {MODEL} takes no speaking instructions",
            reason="UNSUPPORTED_OPTION",
            field="config.instructions",
        )
    if config.language and not voice.speaks(config.language):
        raise InvalidArgument(
            f"the voice {voice.id} does not speak {config.language[:35]!r}",
            reason="UNSUPPORTED_OPTION",
            field="config.language",
            allowed=(voice.language,),
        )
    if config.exact_container and config.encoding is not Encoding.WAV:
        raise InvalidArgument(
            f"exact_container applies to wav only, the format is {config.encoding}",
            field="config.exact_container",
        )
    return SpeechPlan(
        voice=voice,
        voice_fallback=fallback,
        model=voice.models[0],
        encoding=config.encoding,
        rate=resolve_rate(
            config.encoding,
            config.sample_rate,
            voice.sample_rate,
            field="config.output_format.sample_rate_hz",
        ),
        speed=_speed(config.speed),
        whole_sentences=config.whole_sentences,
        noiseless=config.noise_key is not None,
        exact_container=config.exact_container,
    )


def _voice(config: SpeechConfig, catalog: VoiceCatalog) -> tuple[Voice, bool]:
    try:
        return catalog.get(config.voice, field="config.voice"), False
    except NotFound:
        if not config.default_for_unknown_voice:
            raise
        return catalog.default, True


def _speed(speed: float) -> float:
    if speed == 0:
        return 1.0
    if not math.isfinite(speed) or not MIN_SPEED <= speed <= MAX_SPEED:
        raise InvalidArgument(
            f"the speed must be {MIN_SPEED} to {MAX_SPEED:g}, got {speed:g}",
            field="config.speed",
            metadata={"limit": f"{MIN_SPEED}..{MAX_SPEED:g}", "observed": f"{speed:g}"},
        )
    return speed


@dataclass(frozen=True)
class Ready:
    """The slot is taken."""

    voice: str
    """Empty where codes come without one."""
    model: str
    voice_fallback: bool
    encoding: Encoding
    rate: int
    queue_wait: float


@dataclass(frozen=True)
class Audio:
    """A run of output bytes."""

    data: bytes
    first_sample: int
    sample_count: int


@dataclass(frozen=True)
class Mark:
    """The input up to an offset has been spoken at a sample of the output."""

    input_offset: int
    sample: int


@dataclass(frozen=True)
class Progress:
    """Still at work."""

    elapsed: float


class FinishReason(Enum):
    """Why a stream ended."""

    COMPLETE = auto()
    LENGTH = auto()
    VOICE_DELETED = auto()


@dataclass(frozen=True)
class Finished:
    """The end."""

    reason: FinishReason
    sample_count: int
    input_units: int
    time_to_first_audio: float | None
    """Seconds from the configuration; None without audio."""
    duration: float
    """Seconds from the first input to the last audio."""
    audio_seconds: float
    dropped_symbols: int


SpeechEvent = Ready | Audio | Mark | Progress | Finished
