"""What a whisper engine does for the recogniser: encode an excerpt, and decode it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

TEXT_POSITIONS = 448
"""Tokens that whisper's decoder takes, the prompt included."""

SAMPLES_WHEN_HOT = 5
"""Texts that are drawn at a temperature above 0; the likeliest one counts."""

IsCancelled = Callable[[], bool]
"""Whether nobody wants the result any more; called from any thread."""


def never() -> bool:
    """Nobody cancels."""
    return False


@dataclass(frozen=True)
class Attempt:
    """One decoding that is asked for.

    Attributes:
        prompt: previous text, start sequence and, without timestamps, the token that says so.
        temperature: 0 searches for the likeliest text, above it texts are drawn.
        beams: of the search.
        max_length: tokens, the prompt included.
    """

    prompt: Sequence[int]
    temperature: float
    beams: int
    max_length: int


@dataclass(frozen=True)
class Generated:
    """The text of one decoding.

    Attributes:
        tokens: text and timestamps, without the prompt and the end.
        logprob: mean natural log-probability of the tokens and the end.
        no_speech: probability of the token that stands for no speech.
    """

    tokens: list[int]
    logprob: float
    no_speech: float


@dataclass(frozen=True)
class Alignment:
    """Where text tokens are in the audio.

    Attributes:
        positions: first encoder position of each token, ascending; of the end too, last.
        probabilities: of each token.
    """

    positions: list[int]
    probabilities: list[float]


class EncodedAudio(Protocol):
    """An excerpt in the engine. Methods raise CancelledError once nobody wants the result."""

    def detect_language(self) -> str:
        """ISO 639-1 code of the likeliest language; for multilingual models only."""
        ...

    def generate(self, attempt: Attempt) -> Generated:
        """Decodes."""
        ...

    def align(self, start: Sequence[int], tokens: Sequence[int]) -> Alignment:
        """Places text tokens in the audio by cross-attention.

        Args:
            start: the start sequence, without previous text and timestamps.
            tokens: text tokens.
        """
        ...


class Backend(Protocol):
    """A loaded model."""

    is_multilingual: bool
    lanes: int
    """Excerpts that it works on at once; more wait."""

    @property
    def graph_misses(self) -> int:
        """Steps on a CUDA device that no graph was recorded for."""
        ...

    def encode(
        self, audio: NDArray[np.float32], is_cancelled: IsCancelled, *, urgent: bool = False
    ) -> AbstractContextManager[EncodedAudio]:
        """Encodes audio (n,) at 16 kHz in -1..1, at most 30 s; the block holds its place.

        Urgent excerpts come before others that wait.
        """
        ...

    def raise_failure(self) -> None:
        """Raises what made every further call impossible: the process cannot go on then."""
        ...

    def close(self) -> None:
        """Ends what runs; no call follows."""
        ...
