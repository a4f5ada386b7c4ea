"""Speakers of a transcript: the known ones of a form, and segments with their labels."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon_core.errors import InvalidArgument

from antiphon_gateway.convert.content import data_url_bytes
from antiphon_gateway.domain.recognition import Diarization, KnownSpeaker, TranscriptSegment
from antiphon_gateway.openai import audio as wire

_NAMES, _REFERENCES = "known_speaker_names", "known_speaker_references"


def diarization_of(form: wire.TranscriptionForm) -> Diarization | None:
    """What a form asks for; None where it does not ask who speaks.

    Raises:
        InvalidArgument: naming the field, and the entry where one is to blame.
    """
    names, references = form.known_speaker_names, form.known_speaker_references
    if form.response_format != "diarized_json":
        for field, given in ((_NAMES, names), (_REFERENCES, references)):
            if given:
                raise InvalidArgument(
                    f"{field} needs response_format diarized_json",
                    field=field,
                    allowed=("diarized_json",),
                )
        return None
    if len(names) != len(references):
        field = _REFERENCES if len(references) < len(names) else _NAMES
        raise InvalidArgument(
            f"{_NAMES} has {len(names)} entries and {_REFERENCES} has {len(references)}; every "
            "known speaker needs both",
            reason="INVALID_VALUE" if names and references else "MISSING_FIELD",
            field=field,
        )
    _check_names(names)
    return Diarization(
        tuple(
            KnownSpeaker(name, _sample(reference, f"{_REFERENCES}[{index}]"))
            for index, (name, reference) in enumerate(zip(names, references, strict=True))
        )
    )


def diarized_segment(segment: TranscriptSegment, number: int) -> wire.DiarizedSegment:
    """A segment with its speaker.

    Args:
        segment: as it was recognised.
        number: from 1, unique in the transcript.
    """
    return wire.DiarizedSegment(
        id=f"seg_{number:03d}",
        start=segment.start_ms / 1000,
        end=segment.end_ms / 1000,
        text=segment.text.strip(),
        speaker=segment.speaker,
    )


def diarized_segments(segments: Sequence[TranscriptSegment]) -> list[wire.DiarizedSegment]:
    """Those segments that have text."""
    return [
        diarized_segment(segment, number)
        for number, segment in enumerate(segments, 1)
        if segment.text.strip()
    ]


def _check_names(names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        field = f"{_NAMES}[{index}]"
        if not name.strip():
            raise InvalidArgument(f"{field} is blank", field=field)
        if name in names[:index]:
            raise InvalidArgument(f"{field} repeats {name!r}; names are unique", field=field)


def _sample(reference: str, path: str) -> bytes:
    sample = data_url_bytes(reference, path, "audio/wav", reason="INVALID_AUDIO")[0]
    if not sample:
        raise InvalidArgument(f"{path} is empty", reason="INVALID_AUDIO", field=path)
    if len(sample) > wire.MAX_REFERENCE_BYTES:
        raise InvalidArgument(
            f"{path} has {len(sample)} bytes; at most {wire.MAX_REFERENCE_BYTES} are allowed",
            reason="TOO_LARGE",
            field=path,
            metadata={"limit": str(wire.MAX_REFERENCE_BYTES), "observed": str(len(sample))},
        )
    return sample
