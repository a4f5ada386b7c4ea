"""What a voice-activity detector offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
"""Samples a second of all recognition audio."""

WINDOW = 512
"""Samples of one detector window: 32 ms."""


class DetectorState:
    """What a detector remembers of one stream; made by the detector, changed by ``score``."""


class Detector(Protocol):
    """Scores windows of several streams at once."""

    name: str

    def new_state(self) -> DetectorState:
        """State of a stream before its first window."""
        ...

    def score(
        self, windows: NDArray[np.float32], states: Sequence[DetectorState]
    ) -> NDArray[np.float32]:
        """Speech probabilities (B,) of windows (B, 512) float32 in -1..1.

        Row i is the next window of ``states[i]``, which is updated; no state occurs twice.
        """
        ...
