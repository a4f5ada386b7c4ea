"""Checked options of a recognition: how speech becomes text, and who is told apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NoReturn

from antiphon.vocoder.v1 import recognition_service_pb2 as pb
from antiphon_core.errors import FailedPrecondition, InvalidArgument

from antiphon_vocoder.recognition import messages as wire
from antiphon_vocoder.recognition.config import RecognitionSettings
from antiphon_vocoder.recognition.speakers.centroid import MOST_SPEAKERS
from antiphon_vocoder.recognition.speakers.enrolment import sample_field
from antiphon_vocoder.recognition.speakers.options import KnownSpeaker, SpeakerOptions

MAX_PROMPT_CHARACTERS = 1000
MAX_KEYWORDS = 100
MAX_KEYWORD_CHARACTERS = 100
MAX_KNOWN_SPEAKERS = 4
MAX_NAME_CHARACTERS = 64
MAX_SAMPLE_BYTES = 4 << 20
"""Of a known speaker's audio."""
_DIARIZATION = "config.diarization"
_LANGUAGE_FORM = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{1,8})*")


def decode_options(config: pb.RecognitionConfig, info: wire.RecognizerInfo) -> wire.DecodeOptions:
    """How the speech becomes text.

    Raises:
        InvalidArgument: naming the field and the allowed values.
    """
    if config.task not in pb.RecognitionTask.values():
        refuse("config.task", config.task, pb.RecognitionTask.keys())
    translate = config.task == pb.RECOGNITION_TASK_TRANSLATE
    if translate and not info.translates:
        raise InvalidArgument(
            "this recogniser does not translate",
            reason="UNSUPPORTED_OPTION",
            field="config.task",
            allowed=("RECOGNITION_TASK_TRANSCRIBE",),
        )
    if len(config.prompt) > MAX_PROMPT_CHARACTERS:
        raise _over("config.prompt", "characters", MAX_PROMPT_CHARACTERS, len(config.prompt))
    temperature = config.temperature if config.HasField("temperature") else None
    if temperature is not None and not 0 <= temperature <= 1:
        refuse("config.temperature", temperature, ("0 to 1",))
    return wire.DecodeOptions(
        language=_language(config.language, info.languages),
        translate=translate,
        words=config.words,
        prompt=config.prompt,
        temperature=temperature,
        logprobs=config.token_logprobs,
        keywords=_keywords(config.keywords),
    )


def _language(tag: str, languages: Sequence[str]) -> str:
    if not tag:
        return ""
    if not _LANGUAGE_FORM.fullmatch(tag):
        raise InvalidArgument(
            f"{tag!r} is no BCP 47 tag or ISO 639-1 code, such as en or en-US",
            field="config.language",
        )
    language = re.split("[-_]", tag)[0].lower()
    if language not in languages:
        raise InvalidArgument(
            f"this recogniser does not know the language {tag!r}",
            reason="UNSUPPORTED_OPTION",
            field="config.language",
            allowed=languages,
        )
    return language


def _keywords(keywords: Sequence[str]) -> list[str]:
    if len(keywords) > MAX_KEYWORDS:
        raise _over("config.keywords", "keywords", MAX_KEYWORDS, len(keywords))
    for index, keyword in enumerate(keywords):
        field = f"config.keywords[{index}]"
        if not keyword.strip():
            raise InvalidArgument(f"{field} is blank", field=field)
        if len(keyword) > MAX_KEYWORD_CHARACTERS:
            raise _over(field, "characters", MAX_KEYWORD_CHARACTERS, len(keyword))
    return list(keywords)


def speaker_options(
    config: pb.RecognitionConfig, settings: RecognitionSettings, info: wire.RecognizerInfo
) -> SpeakerOptions | None:
    """Who is told apart; None where nobody asks. Samples are decoded by the worker.

    Raises:
        InvalidArgument: naming the field and the allowed values.
        FailedPrecondition: SPEAKER_MODEL_MISSING.
    """
    if not config.HasField("diarization"):
        return None
    if not info.diarizes:
        raise FailedPrecondition(
            "speakers cannot be told apart without a speaker model: install the package "
            "resemblyzer (`make setup`), or set recognition.speaker_model",
            reason="SPEAKER_MODEL_MISSING",
            field=_DIARIZATION,
        )
    known = config.diarization.known_speakers
    if len(known) > MAX_KNOWN_SPEAKERS:
        field = f"{_DIARIZATION}.known_speakers"
        raise _over(field, "known speakers", MAX_KNOWN_SPEAKERS, len(known))
    most = config.diarization.max_speakers
    least = len(known)
    if most and not max(least, 1) <= most <= MOST_SPEAKERS:
        allowed = f"{max(least, 1)} to {MOST_SPEAKERS}"
        refuse(f"{_DIARIZATION}.max_speakers", most, ("0", allowed))
    names: set[str] = set()
    for index, speaker in enumerate(known):
        _check_known(speaker, index, names)
        names.add(speaker.name)
    return SpeakerOptions(
        known=[KnownSpeaker(speaker.name, speaker.audio) for speaker in known],
        most=most or max(least, settings.max_speakers),
    )


def _check_known(speaker: pb.KnownSpeaker, index: int, names: set[str]) -> None:
    field = f"{_DIARIZATION}.known_speakers[{index}].name"
    if not 1 <= len(speaker.name) <= MAX_NAME_CHARACTERS:
        allowed = f"1 to {MAX_NAME_CHARACTERS} characters"
        refuse(field, repr(speaker.name), (allowed,))
    if speaker.name in names:
        raise InvalidArgument(f"{field} repeats {speaker.name!r}; names are unique", field=field)
    field = sample_field(index)
    if not speaker.audio:
        raise InvalidArgument(f"{field} is empty", reason="INVALID_AUDIO", field=field)
    if len(speaker.audio) > MAX_SAMPLE_BYTES:
        raise _over(field, "bytes", MAX_SAMPLE_BYTES, len(speaker.audio), reason="TOO_LARGE")


def refuse(field: str, value: object, allowed: Sequence[str]) -> NoReturn:
    """Raises InvalidArgument: the field has a value that is not allowed."""
    raise InvalidArgument(f"{field} cannot be {value}", field=field, allowed=allowed)


def _over(
    field: str, what: str, limit: int, observed: int, reason: str = "INVALID_VALUE"
) -> InvalidArgument:
    return InvalidArgument(
        f"{field} has {observed} {what}, the limit is {limit}",
        reason=reason,
        field=field,
        metadata={"limit": str(limit), "observed": str(observed)},
    )
