"""What a judge of pauses offers."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

HEARD_SECONDS = 8
"""A judge hears so much audio before the end of the pause."""


class PauseJudge(Protocol):
    """Says how likely it is that a speaker who pauses has finished."""

    name: str
    needs_text: bool
    """Whether ``probability`` looks at the text."""

    def probability(self, audio: NDArray[np.float32], text: str | None, language: str) -> float:
        """How likely the turn is over, 0 to 1.

        Args:
            audio: (n,) at 16 kHz in -1..1, from the start of the utterance to the pause; the
                last samples are the silence in which it was noticed.
            text: what the recogniser made of it; None where it has not answered.
            language: ISO 639-1 code of the text; empty is unknown.
        """
        ...
