"""A whisper engine that says what a test wants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from antiphon_vocoder.recognition.whisper.backend import (
    Alignment,
    Attempt,
    Generated,
    IsCancelled,
)
from antiphon_vocoder.recognition.whisper.vocabulary import Vocabulary

Answer = tuple[str, float, float]
"""Text, mean log-probability, probability of no speech."""


class ScriptedEngine:
    """Answers each attempt with the next of its texts, the last one again and again."""

    is_multilingual = False
    lanes = 1
    graph_misses = 0

    def __init__(self, vocabulary: Vocabulary, answers: Sequence[Answer]) -> None:
        self._vocabulary = vocabulary
        self._answers = answers
        self.attempts: list[Attempt] = []

    @contextmanager
    def encode(
        self, audio: np.ndarray, is_cancelled: IsCancelled, *, urgent: bool = False
    ) -> Iterator[ScriptedEngine]:
        yield self

    def detect_language(self) -> str:
        return "en"

    def generate(self, attempt: Attempt) -> Generated:
        text, logprob, no_speech = self._answers[min(len(self.attempts), len(self._answers) - 1)]
        self.attempts.append(attempt)
        return Generated(self._vocabulary.encode_text(text), logprob, no_speech)

    def align(self, start: Sequence[int], tokens: Sequence[int]) -> Alignment:
        return Alignment([0] * (len(tokens) + 1), [1.0] * len(tokens))

    def raise_failure(self) -> None:
        pass

    def close(self) -> None:
        pass
