"""Transcriptions: the form to the domain, recognised segments to the response formats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from antiphon_core.errors import InvalidArgument

from antiphon_gateway.convert.diarization import diarization_of, diarized_segments
from antiphon_gateway.domain.recognition import FileFinished, RecognitionConfig, TranscriptSegment
from antiphon_gateway.openai import audio as wire
from antiphon_gateway.openai.decode import validation_error

_LISTS = frozenset(
    {"timestamp_granularities", "include", "keywords", "languages"}
    | {"known_speaker_names", "known_speaker_references"}
)
_STREAMED = ("json", "text", "diarized_json")


def form_of(fields: Mapping[str, Sequence[str]]) -> wire.TranscriptionForm:
    """The validated form; list fields may be spelled with or without ``[]`` or an index.

    Raises:
        InvalidArgument: wrong type, out of range, or a combination that cannot be served.
    """
    values: dict[str, Any] = {}
    for name, given in fields.items():
        plain = name.partition("[")[0]
        if plain in _LISTS:
            values.setdefault(plain, []).extend(given)
        else:
            values[plain] = given[-1]
    try:
        form = msgspec.convert(values, wire.TranscriptionForm, strict=False)
    except msgspec.ValidationError as error:
        raise validation_error(error, wire.TranscriptionForm) from None
    if form.temperature is not None and not math.isfinite(form.temperature):
        raise InvalidArgument("temperature must be a finite number", field="temperature")
    if form.timestamp_granularities and form.response_format != "verbose_json":
        raise InvalidArgument(
            "timestamp_granularities needs response_format verbose_json",
            field="timestamp_granularities",
        )
    if form.include and form.response_format != "json":
        raise InvalidArgument(
            "include logprobs needs response_format json", field="include", allowed=("json",)
        )
    if form.stream and form.response_format not in _STREAMED:
        raise InvalidArgument(
            f"stream is not possible with response_format {form.response_format}; "
            f"allowed: {', '.join(_STREAMED)}",
            field="stream",
            allowed=_STREAMED,
        )
    return form


def config_of(
    form: wire.TranscriptionForm, model: str, *, translate: bool, timeout: float
) -> RecognitionConfig:
    """What the recogniser is told.

    Args:
        form: validated.
        model: the resolved recogniser.
        translate: answer in English.
        timeout: seconds until the call's deadline.

    Raises:
        InvalidArgument: naming the field.
    """
    if translate and form.response_format == "diarized_json":
        raise InvalidArgument(
            "response_format diarized_json: translations do not say who speaks",
            reason="UNSUPPORTED_OPTION",
            field="response_format",
        )
    return RecognitionConfig(
        model=model,
        language=_language(form),
        translate=translate,
        words="word" in form.timestamp_granularities,
        logprobs="logprobs" in form.include,
        prompt=form.prompt,
        keywords=tuple(form.keywords),
        diarization=diarization_of(form),
        temperature=form.temperature,
        timeout=timeout,
    )


def _language(form: wire.TranscriptionForm) -> str:
    """The one language that is given; empty for none.

    The recogniser detects among all of its languages and cannot be held to some of them, so that
    several would promise what is not kept.
    """
    given = list(dict.fromkeys(filter(None, (form.language, *form.languages))))
    if len(given) > 1:
        field = "languages"
        raise InvalidArgument(
            f"{field}: the recogniser takes one language, or none to detect it among all; "
            f"given: {', '.join(given)}",
            reason="UNSUPPORTED_OPTION",
            field=field,
        )
    return given[0] if given else ""


def response_of(
    form: wire.TranscriptionForm,
    segments: Sequence[TranscriptSegment],
    finished: FileFinished,
    *,
    translate: bool,
) -> tuple[bytes, bytes]:
    """The body of a whole response and its content type."""
    usage = wire.DurationUsage(round(finished.audio_seconds, 3))
    if form.response_format == "text":
        return finished.text.encode() + b"\n", b"text/plain; charset=utf-8"
    if form.response_format == "srt":
        return subtitles_srt(segments).encode(), b"application/x-subrip; charset=utf-8"
    if form.response_format == "vtt":
        return subtitles_vtt(segments).encode(), b"text/vtt; charset=utf-8"
    if form.response_format == "json":
        tokens = logprobs_of(segments) if form.include else msgspec.UNSET
        body = wire.Transcription(finished.text, usage, tokens)
        return msgspec.json.encode(body), b"application/json"
    if form.response_format == "diarized_json":
        diarized = wire.DiarizedTranscription(
            finished.audio_seconds, finished.text, diarized_segments(segments), usage
        )
        return msgspec.json.encode(diarized), b"application/json"
    granularities = form.timestamp_granularities or ["segment"]
    verbose = wire.VerboseTranscription(
        task="translate" if translate else "transcribe",
        language=finished.language,
        duration=finished.audio_seconds,
        text=finished.text,
        usage=usage,
        segments=_segments(segments) if "segment" in granularities else msgspec.UNSET,
        words=_words(segments) if "word" in granularities else msgspec.UNSET,
    )
    return msgspec.json.encode(verbose), b"application/json"


def logprobs_of(segments: Sequence[TranscriptSegment]) -> list[wire.TokenLogprob]:
    """Tokens of all segments with their log-probabilities."""
    return [
        wire.TokenLogprob(
            token=token.text.decode(errors="replace"),
            bytes=list(token.text),
            logprob=token.logprob,
        )
        for segment in segments
        for token in segment.tokens
    ]


def subtitles_srt(segments: Sequence[TranscriptSegment]) -> str:
    """SubRip; cues never overlap and never go back."""
    return "".join(
        f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{text}\n\n"
        for number, (start, end, text) in enumerate(_cues(segments), 1)
    )


def subtitles_vtt(segments: Sequence[TranscriptSegment]) -> str:
    """WebVTT; cues never overlap and never go back."""
    return "WEBVTT\n\n" + "".join(
        f"{_clock(start, '.')} --> {_clock(end, '.')}\n{text}\n\n"
        for start, end, text in _cues(segments)
    )


def _cues(segments: Sequence[TranscriptSegment]) -> list[tuple[int, int, str]]:
    cues = []
    last_end = 0
    for segment in segments:
        start = max(segment.start_ms, last_end)
        end = max(segment.end_ms, start)
        # A blank line would end the cue, and an arrow would begin another.
        text = " ".join(segment.text.split()).replace("-->", "->")
        if text:
            cues.append((start, end, text))
            last_end = end
    return cues


def _clock(milliseconds: int, mark: str) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{seconds:02d}{mark}{rest:03d}"


def _segments(segments: Sequence[TranscriptSegment]) -> list[wire.Segment]:
    return [
        wire.Segment(
            id=index,
            seek=segment.start_ms // 10,
            start=segment.start_ms / 1000,
            end=segment.end_ms / 1000,
            text=segment.text,
            tokens=list(segment.token_ids),
            temperature=segment.temperature,
            avg_logprob=segment.average_logprob,
            compression_ratio=segment.compression_ratio,
            no_speech_prob=segment.no_speech_probability,
        )
        for index, segment in enumerate(segments)
    ]


def _words(segments: Sequence[TranscriptSegment]) -> list[wire.Word]:
    return [
        wire.Word(word.text.strip(), word.start_ms / 1000, word.end_ms / 1000)
        for segment in segments
        for word in segment.words
    ]
