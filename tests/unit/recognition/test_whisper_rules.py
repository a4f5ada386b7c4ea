"""Whisper's rules over what an engine generates: higher temperatures, and text that is dropped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from antiphon_vocoder.recognition.messages import DecodeOptions
from antiphon_vocoder.recognition.whisper.opening import packaged_model
from antiphon_vocoder.recognition.whisper.recognizer import TEMPERATURES, WhisperRecognizer
from antiphon_vocoder.recognition.whisper.transcript import Effort, Transcript
from antiphon_vocoder.recognition.whisper.vocabulary import Vocabulary

from tests.unit.recognition.scripted_engine import Answer, ScriptedEngine

LOOP = "no " * 60
SECOND = np.zeros(16_000, np.float32)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(packaged_model() / "tokenizer.json")


def heard(
    vocabulary: Vocabulary,
    answers: Sequence[Answer],
    *,
    effort: Effort = Effort.FULL,
    temperature: float | None = None,
) -> tuple[Transcript, list[float]]:
    """The transcript, and the temperatures that it took."""
    engine = ScriptedEngine(vocabulary, answers)
    options = DecodeOptions(temperature=temperature)
    transcript = WhisperRecognizer(engine, vocabulary).transcribe(SECOND, options, effort=effort)
    return transcript, [attempt.temperature for attempt in engine.attempts]


@pytest.mark.parametrize(
    ("answers", "text", "tried"),
    [
        ([("Hello.", -0.9, 0.1)], "Hello.", 1),
        ([("Hullo.", -1.1, 0.1), ("Halo.", -1.01, 0.1), ("Hello.", -1.0, 0.1)], "Hello.", 3),
        ([(LOOP, -0.1, 0.1), ("Hello.", -0.5, 0.1)], "Hello.", 2),
        # Nothing is right: the likeliest that does not repeat itself.
        ([("Hello.", -1.2, 0.1), (LOOP, -0.1, 0.1), ("Hullo.", -1.5, 0.1)], "Hello.", 6),
        ([(LOOP, -0.1, 0.1)], "", 6),
    ],
)
def test_text_that_looks_wrong_is_decoded_at_the_next_temperature(
    vocabulary: Vocabulary, answers: Sequence[Answer], text: str, tried: int
) -> None:
    transcript, temperatures = heard(vocabulary, answers)
    assert transcript.text == text
    assert tuple(temperatures) == TEMPERATURES[:tried]
    assert transcript.is_settled


@pytest.mark.parametrize(
    ("logprob", "no_speech", "text"),
    [
        (-1.01, 0.61, ""),
        (-1.01, 0.60, "You."),
        (-1.00, 0.61, "You."),
        # What the model invents for noise and music is surer of itself.
        (-0.41, 0.71, ""),
        (-0.39, 0.71, "You."),
    ],
)
def test_text_without_speech_is_dropped_at_once(
    vocabulary: Vocabulary, logprob: float, no_speech: float, text: str
) -> None:
    transcript, temperatures = heard(vocabulary, [("You.", logprob, no_speech)])
    assert (transcript.text, transcript.no_speech) == (text, no_speech)
    if not text:
        assert temperatures == [0.0]


@pytest.mark.parametrize("effort", [Effort.AHEAD, Effort.DRAFT])
def test_passes_ahead_try_once_and_say_whether_the_final_may_differ(
    vocabulary: Vocabulary, effort: Effort
) -> None:
    for answer, settled in ((("Hello.", -0.5, 0.1), effort is Effort.AHEAD), ((LOOP, 0, 0), False)):
        transcript, temperatures = heard(vocabulary, [answer], effort=effort)
        assert temperatures == [0.0]
        assert transcript.is_settled == settled


def test_a_given_temperature_is_the_only_one(vocabulary: Vocabulary) -> None:
    transcript, temperatures = heard(vocabulary, [("Hullo.", -3.0, 0.1)], temperature=0.7)
    assert (transcript.text, temperatures) == ("Hullo.", [0.7])
