"""From a segment to what the model process speaks, with the place of every word in the text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_vocoder.text.phonemes import (
    TextRun,
    join_phonemes,
    phoneme_ids,
    punctuation_runs,
    without_language_marks,
)
from antiphon_vocoder.text.phonemizer import Phonemizer
from antiphon_vocoder.text.segmentation import Boundary, Segment
from antiphon_vocoder.voices import Voice

_FINAL_MARKS = {Boundary.SENTENCE: ".", Boundary.CLAUSE: ","}
_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class PreparedSegment:
    """A segment's phoneme ids; none when nothing of it can be spoken."""

    segment: Segment
    ids: list[int]
    dropped: int
    """Phonemes that the voice has no id for."""
    word_ends: list[int]
    """For each spoken word the index behind its last id."""
    word_offsets: list[int]
    """For each spoken word the offset in the joined text up to which it is spoken."""


async def prepare_segment(
    segment: Segment, voice: Voice, phonemizer: Phonemizer
) -> PreparedSegment:
    """Phonemizes a segment for a voice; raises what the phonemizer raises."""
    runs = punctuation_runs(segment.text, final_mark=_FINAL_MARKS[segment.boundary])
    ipa = [
        without_language_marks(phonemes)
        for phonemes in await phonemizer.phonemize([run.text for run in runs], voice.espeak_voice)
    ]
    phonemes = join_phonemes(runs, ipa)
    if not phonemes:
        return PreparedSegment(segment, [], 0, [], [])
    ids, dropped, word_ends = phoneme_ids(phonemes, voice.phoneme_id_map)
    return PreparedSegment(segment, ids, dropped, word_ends, word_offsets(segment, runs, ipa))


def word_offsets(segment: Segment, runs: Sequence[TextRun], ipa: Sequence[str]) -> list[int]:
    """For each word of the phonemes the offset in the joined text up to which it is spoken.

    espeak-ng reads "4,000" as two words and "in the" as one, so words are matched by order within
    each run between punctuation marks; where their numbers differ, a word claims no more of the
    text than its share. Offsets never decrease.
    """
    ends = [segment.start + found.end() for found in _WORD.finditer(segment.raw)]
    written = [len(run.text.split()) for run in runs]
    spoken = [len(phonemes.split()) for phonemes in ipa]
    if sum(written) != len(ends):
        # Markup or a lone dash was left out: the segment is matched as one run.
        written, spoken = [len(ends)], [sum(spoken)]
    offsets: list[int] = []
    before = 0
    for written_count, spoken_count in zip(written, spoken, strict=True):
        for word in range(1, spoken_count + 1):
            claimed = before + written_count * word // spoken_count
            offsets.append(ends[claimed - 1] if claimed else segment.start)
        before += written_count
    return offsets
