"""Loudness as a voice-activity detector: no model, for when there is none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from antiphon_vocoder.recognition.vad.detector import DetectorState

_FRAME = 320
"""20 ms."""
_EVEN_ODDS = np.float32(0.02)
"""RMS that counts as probability 0.5; full scale is 1."""


class EnergyDetector:
    """Maps the loudest 20 ms of a window to rms / (rms + 0.02).

    Probability 0.5 is an RMS of 0.02, so that the thresholds of model detectors keep their
    meaning; the default release threshold 0.35 is an RMS of 0.011.
    """

    name = "energy"

    def new_state(self) -> DetectorState:
        """See Detector; loudness needs no memory."""
        return DetectorState()

    def score(
        self, windows: NDArray[np.float32], states: Sequence[DetectorState]
    ) -> NDArray[np.float32]:
        """See Detector."""
        first = np.mean(np.square(windows[:, :_FRAME]), axis=1)
        last = np.mean(np.square(windows[:, -_FRAME:]), axis=1)
        rms = np.sqrt(np.maximum(first, last))
        return rms / (rms + _EVEN_ODDS)
