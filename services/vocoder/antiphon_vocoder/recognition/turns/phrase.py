"""A judge without a model: how a pause is worded and how the voice ends in it.

The recogniser punctuates what it hears, which already says much; a last word that asks for
another one ("the", "and", "to") and an opening that asks for a main clause ("if I ...") say that
the speaker goes on. Pitch and loudness add what the text does not have. The weights are those of a
logistic regression, fitted by ``python -m bench.turn_judge --fit`` on recorded prompts.
"""

from __future__ import annotations

import math
import re

import numpy as np
from numpy.typing import NDArray

from antiphon_vocoder.recognition.turns.prosody import ending

_UNFINISHED = """
a an the my your his her its our their this these those some any every each no
and or but nor so because if when while although though unless until whether than that which
who whose whom where as
of in on at by for from with without into onto to about between among under over after before
during since through toward towards against per via near like
am is are was were be been being have has had having do does did doing will would shall should
can could may might must
i we he she they there it's i'm i'll i'd i've we're we'll they're he's she's there's that's
very really quite just also um uh er hmm well not
"""
_ANSWERS = "yes no okay ok yeah sure thanks hello hi bye please"
_OPENINGS = "if when while because although though since after before unless until once whenever to"
_GOES_ON = frozenset(_UNFINISHED.split())
"""English words that a sentence seldom ends with."""
_SHORT_ANSWERS = frozenset(_ANSWERS.split())
"""Whole by themselves."""
_OPENS_CLAUSE = frozenset(_OPENINGS.split())
"""With one of these, a main clause is to come behind a comma."""
_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")

FEATURES = (
    "intercept",
    "sentence_end",
    "question",
    "broken_off",
    "comma",
    "goes_on",
    "open_clause",
    "short_answer",
    "one_word",
    "pitch_slope",
    "pitch_fall",
    "loudness_slope",
    "loudness_fall",
)
WEIGHTS = np.array(
    [-1.57, 0.84, 1.08, -2.03, -2.00, -2.11, -1.56, 1.00, -0.24, -0.02, -0.47, -0.27, -0.77]
)


class PhraseJudge:
    """See the module. Words are known for English; other languages have punctuation and voice."""

    name = "phrase"
    needs_text = True

    def probability(self, audio: NDArray[np.float32], text: str | None, language: str) -> float:
        """See PauseJudge."""
        score = float(WEIGHTS @ features(audio, text, language))
        return 1 / (1 + math.exp(-score))


def features(audio: NDArray[np.float32], text: str | None, language: str) -> NDArray[np.float64]:
    """(13,) in the order of FEATURES; without text those of the text are 0."""
    voice = ending(audio)
    wording = [0.0] * 8 if text is None else _wording(text.strip(), language)
    return np.array(
        [
            1.0,
            *wording,
            np.clip(voice.pitch_slope / 20, -1, 1),
            np.clip(voice.pitch_fall / 6, -1, 1),
            np.clip(voice.loudness_slope / 60, -1, 1),
            np.clip(voice.loudness_fall / 10, -1, 1),
        ]
    )


def _wording(text: str, language: str) -> list[float]:
    closing = text.rstrip("\"')\u201d\u00bb\u2019")
    broken_off = closing.endswith(("...", "\u2026", "-", "\u2013", "\u2014", ":"))
    sentence_end = closing.endswith((".", "!", "\u3002", "\uff01")) and not broken_off
    words = [word.lower().replace("\u2019", "'") for word in _WORD.findall(text)]
    goes_on = open_clause = short_answer = False
    if words and language in ("", "en"):
        clause = re.split(r"[.!?]\s+", closing)[-1]
        clause_words = [word.lower() for word in _WORD.findall(clause)]
        short_answer = len(words) <= 2 and words[-1] in _SHORT_ANSWERS
        goes_on = words[-1] in _GOES_ON and not short_answer
        open_clause = bool(clause_words) and clause_words[0] in _OPENS_CLAUSE and "," not in clause
    return [
        float(sentence_end),
        float(closing.endswith(("?", "\uff1f"))),
        float(broken_off),
        float(closing.endswith((",", ";", "\u3001", "\uff0c"))),
        float(goes_on),
        float(open_clause),
        float(short_answer),
        float(len(words) == 1),
    ]
