"""Keywords reach the model's prompt, in order, as many as fit."""

from __future__ import annotations

import numpy as np
import pytest
from antiphon_vocoder.recognition.messages import DecodeOptions
from antiphon_vocoder.recognition.whisper.opening import packaged_model
from antiphon_vocoder.recognition.whisper.prompt import PROMPT_TOKENS, PromptBuilder
from antiphon_vocoder.recognition.whisper.recognizer import WhisperRecognizer
from antiphon_vocoder.recognition.whisper.vocabulary import Vocabulary

from tests.unit.recognition.scripted_engine import ScriptedEngine


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(packaged_model() / "tokenizer.json")


def test_keywords_stand_before_the_prompt(vocabulary: Vocabulary) -> None:
    builder = PromptBuilder(vocabulary)
    tokens = builder.tokens(" We met. ", ["Siobhan", "New York"])
    assert vocabulary.decode(tokens) == " Siobhan, New York. We met."
    assert builder.tokens("", []) == []
    assert builder.left_out == 0


def test_what_does_not_fit_is_left_out_from_the_end_and_counted_once(
    vocabulary: Vocabulary,
) -> None:
    builder = PromptBuilder(vocabulary)
    keywords = [f"name{number}" for number in range(100)]
    tokens = builder.tokens("The end.", keywords)
    assert builder.tokens("The end.", keywords) == tokens
    text = vocabulary.decode(tokens)
    kept = [word.strip() for word in text.removesuffix(" The end.").rstrip(",").split(",")]
    assert PROMPT_TOKENS - 8 < len(tokens) <= PROMPT_TOKENS
    assert kept == keywords[: len(kept)]
    assert builder.left_out == 100 - len(kept)
    long = " ".join(["word"] * 400)
    assert vocabulary.decode(builder.tokens(long, ["Siobhan"])) == " word" * PROMPT_TOKENS


def test_every_engine_is_given_the_keywords_before_the_start_sequence(
    vocabulary: Vocabulary,
) -> None:
    engine = ScriptedEngine(vocabulary, [("Yes.", -0.1, 0.0)])
    recognizer = WhisperRecognizer(engine, vocabulary)
    audio = np.zeros(16_000, np.float32)
    recognizer.transcribe(audio, DecodeOptions(keywords=["Siobhan"], prompt="We met."))
    recognizer.transcribe(audio, DecodeOptions())
    told, plain = [list(attempt.prompt) for attempt in engine.attempts]
    assert told == [vocabulary.previous, *told[1 : -len(plain)], *plain]
    assert vocabulary.decode(told[1 : -len(plain)]) == " Siobhan. We met."
    assert recognizer.keywords_left_out == 0
