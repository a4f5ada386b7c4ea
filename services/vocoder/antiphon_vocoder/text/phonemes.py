"""Phoneme ids of a segment: what stands between text and a Piper voice's input."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LANGUAGE_SWITCH = re.compile(r"\([a-z]{2,3}(?:-[a-z0-9-]+)?\)")
_RUN = re.compile(
    r"""(?P<mark>
        [.!?\u2026]+(?=["'\u201d\u2019»)\]]*(?:\s|$))
      | [,;:](?=["'\u201d\u2019»)\]]*(?:\s|$))
      | [。！？｡．、，；：]
      | \s[-–]\s | [—―]
    )""",
    re.VERBOSE,
)
_MARK_PHONEMES = {
    "\u2026": ".", "。": ".", "｡": ".", "．": ".", "！": "!", "？": "?",
    "、": ",", "，": ",", "；": ";", "：": ":", "—": ",", "―": ",", "-": ",", "–": ",",
}  # fmt: skip
_OTHER_PUNCTUATION = re.compile(r"[\"\u201c\u201d«»()\[\]{}「」『』（）【】]+")


@dataclass(frozen=True)
class TextRun:
    """Text between two punctuation marks, and the mark behind it (one of ``. ! ? , ; :``)."""

    text: str
    mark: str


def punctuation_runs(text: str, *, final_mark: str) -> list[TextRun]:
    """Splits a cleaned segment at the marks that a voice speaks.

    espeak-ng swallows punctuation, which the voice was trained with, so each run is phonemized by
    itself. Marks inside numbers, times and addresses have no white space behind them and stay; so
    do the full stops of abbreviations, which espeak-ng reads as such, except the last.

    Args:
        final_mark: mark of the last run where the text has none.
    """
    runs: list[TextRun] = []
    start = 0
    for found in _RUN.finditer(text):
        mark = _mark_phoneme(found.group())
        if mark == "." and any(map(str.isalnum, text[found.end() :])):
            # A segment holds one sentence: a full stop before its end is an abbreviation's.
            continue
        _append(runs, text[start : found.start()], mark)
        start = found.end()
    _append(runs, text[start:], final_mark)
    return runs


def _append(runs: list[TextRun], text: str, mark: str) -> None:
    text = _OTHER_PUNCTUATION.sub(" ", text).strip(" '\u2019\u2018")
    if any(character.isalnum() for character in text):
        runs.append(TextRun(text, mark))


def _mark_phoneme(mark: str) -> str:
    for character in mark.strip():
        if character in "!?！？":
            return _MARK_PHONEMES.get(character, character)
    first = mark.strip()[0]
    return _MARK_PHONEMES.get(first, first)


def without_language_marks(ipa: str) -> str:
    """IPA without espeak-ng's marks of a switch of language, white space collapsed."""
    return " ".join(_LANGUAGE_SWITCH.sub("", ipa).split())


def join_phonemes(runs: Sequence[TextRun], phonemes: Sequence[str]) -> str:
    """The segment's phonemes: each run's IPA with its mark; words are separated by one space."""
    pairs = zip(runs, phonemes, strict=True)
    return " ".join(ipa + run.mark for run, ipa in pairs if ipa)


def phoneme_ids(
    phonemes: str, id_map: Mapping[str, Sequence[int]]
) -> tuple[list[int], int, list[int]]:
    """Ids ``^ _ p1 _ p2 _ ... $`` of the NFD code points.

    Args:
        id_map: the voice's phoneme_id_map, with ``^``, ``_`` and ``$``.

    Returns:
        The ids, how many symbols had none, and for each word the index behind its last id.
    """
    pad = id_map["_"]
    ids = [*id_map["^"], *pad]
    word_ends = []
    dropped = 0
    for symbol in unicodedata.normalize("NFD", phonemes):
        if symbol == " ":
            word_ends.append(len(ids))
        found = id_map.get(symbol)
        if found is None:
            dropped += 1
            continue
        ids.extend(found)
        ids.extend(pad)
    word_ends.append(len(ids))
    ids.extend(id_map["$"])
    return ids, dropped, word_ends
