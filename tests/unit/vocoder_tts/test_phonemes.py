"""Phoneme ids: punctuation kept, language marks removed, unknown symbols counted."""

from __future__ import annotations

import pytest
from antiphon_vocoder.text.espeak import Espeak, EspeakError
from antiphon_vocoder.text.phonemes import (
    TextRun,
    join_phonemes,
    phoneme_ids,
    punctuation_runs,
    without_language_marks,
)

ID_MAP = {
    "_": [0],
    "^": [1],
    "$": [2],
    " ": [3],
    "a": [4],
    "b": [5],
    "ç": [6],
    "c": [7],
    "\u0327": [8],
}


@pytest.fixture(scope="module")
def espeak() -> Espeak:
    return Espeak()


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("Hello, world!", [("Hello", ","), ("world", "!")]),
        ("It is 10:30 and 4,000.5", [("It is 10:30 and 4,000.5", ".")]),
        ("Said Dr. Smith; then left…", [("Said Dr. Smith", ";"), ("then left", ".")]),
        ('"Well," he said', [("Well", ","), ("he said", ".")]),
        ("really?!", [("really", "?")]),
        ("one — two - three", [("one", ","), ("two", ","), ("three", ".")]),
        ("これ、はい！", [("これ", ","), ("はい", "!")]),
        ("visit www.example.com now", [("visit www.example.com now", ".")]),
        ("...", []),
    ],
)
def test_punctuation_runs(text: str, runs: list[tuple[str, str]]) -> None:
    assert [(run.text, run.mark) for run in punctuation_runs(text, final_mark=".")] == runs


def test_language_marks_go_and_marks_stay() -> None:
    runs = [TextRun("x", ","), TextRun("y", ".")]
    clean = [without_language_marks(ipa) for ipa in ("(en)aː(fr)b", " c ")]
    assert join_phonemes(runs, clean) == "aːb, c."
    assert join_phonemes(runs, ["", "c"]) == "c."


def test_ids_are_padded_decomposed_and_count_what_is_unknown() -> None:
    ids, dropped, word_ends = phoneme_ids("açʘb", ID_MAP)
    # The cedilla is decomposed, so the map's own composed symbol is not used.
    assert ids == [1, 0, 4, 0, 7, 0, 8, 0, 5, 0, 2]
    assert (dropped, word_ends) == (1, [10])


def test_word_ends_are_indices_into_the_ids() -> None:
    ids, _, word_ends = phoneme_ids("ab a.", ID_MAP)
    assert ids == [1, 0, 4, 0, 5, 0, 3, 0, 4, 0, 2]
    assert word_ends == [6, 10]


def test_espeak_reads_numbers_and_words(espeak: Espeak) -> None:
    assert espeak.phonemes("The quick brown fox", "en-us") == "ðə kwˈɪk bɹˈaʊn fˈɑːks"
    assert espeak.phonemes("23", "en-us") == espeak.phonemes("twenty three", "en-us")
    assert espeak.phonemes("", "en-us") == ""
    assert espeak.phonemes("a\0b", "en-us")


def test_espeak_switches_voices(espeak: Espeak) -> None:
    english = espeak.phonemes("chat", "en-us")
    assert espeak.phonemes("chat", "fr") != english
    assert espeak.phonemes("chat", "en-us") == english
    with pytest.raises(EspeakError, match="no voice 'nowhere'"):
        espeak.phonemes("chat", "nowhere")
