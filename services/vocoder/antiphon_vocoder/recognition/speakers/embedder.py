"""What turns a voice into a vector."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

RATE = 16_000

Embedding = NDArray[np.float32]
"""Unit vector (D,); the cosine of two says how alike the voices are."""


class Embedder(Protocol):
    """A loaded model; ``embed`` may be called from several threads."""

    name: str
    same_voice: float
    """Cosine from which the voice of a segment of at most 1.6 s is that of a centroid."""
    rise: float
    """By how much that cosine rises with each further second of the segment, up to 5 s of them."""

    def embed(self, audio: NDArray[np.float32]) -> Embedding:
        """The voice of audio (n,) at 16 kHz in -1..1.

        Raises:
            VoiceUnheard: the audio holds nothing to tell a voice by.
        """
        ...


class VoiceUnheard(Exception):
    """The audio is silent or too short for the model."""


def unit(vector: NDArray[np.floating]) -> Embedding:
    """The vector at length 1.

    Raises:
        VoiceUnheard: it is zero or not finite.
    """
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length) or length == 0.0:
        raise VoiceUnheard(f"an embedding of length {length:g}")
    return (vector / length).astype(np.float32)
