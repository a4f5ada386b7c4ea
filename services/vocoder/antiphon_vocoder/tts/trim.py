"""Removes the silence that a model puts before and after a clause, while it streams."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

THRESHOLD = 0.004
"""Amplitude (-48 dBFS) below which a sample is silence."""
_KEPT_BEFORE_SECONDS = 0.010
_KEPT_AFTER_SECONDS = 0.030


class SilenceTrimmer:
    """Trims one clause; the result does not depend on how the clause is cut into pieces.

    A short margin round the speech stays, so that soft beginnings and endings are whole. Silence
    inside the clause is kept: it is held back until speech follows it.
    """

    def __init__(self, sample_rate: int) -> None:
        self._before = int(_KEPT_BEFORE_SECONDS * sample_rate)
        self._after = int(_KEPT_AFTER_SECONDS * sample_rate)
        self._held = np.zeros(0, np.float32)
        self._heard = False
        self._margin_left = 0
        self.skipped = 0
        """Samples left out before the speech, so far."""

    def push(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Takes the next samples (n,); returns those (m,) that are not trailing silence so far.

        What is still held at the end of the clause is silence, and is dropped by not asking.
        """
        joined = np.concatenate((self._held, samples))
        loud = np.flatnonzero(np.abs(joined) > THRESHOLD)
        if not self._heard:
            if len(loud) == 0:
                self._held = joined[max(len(joined) - self._before, 0) :]
                self.skipped += len(joined) - len(self._held)
                return np.zeros(0, np.float32)
            self._heard = True
            first = max(int(loud[0]) - self._before, 0)
            self.skipped += first
            joined = joined[first:]
            loud = loud - first
        stop = self._margin_left
        if len(loud):
            stop = int(loud[-1]) + 1 + self._after
        emitted = min(stop, len(joined))
        self._margin_left = stop - emitted
        self._held = joined[emitted:]
        return joined[:emitted]
