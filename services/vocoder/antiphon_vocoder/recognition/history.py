"""The recent audio of a stream, addressed by absolute sample index."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SMALLEST = 16_000


class AudioHistory:
    """Keeps samples [start, end) of a stream; memory follows what is kept, not what was heard."""

    def __init__(self) -> None:
        self._buffer = np.zeros(_SMALLEST, np.float32)
        self._offset = 0
        self.start = 0
        self.end = 0

    def append(self, samples: NDArray[np.float32]) -> None:
        """Adds samples (n,) at ``end``."""
        used = self._offset + self.end - self.start
        if used + len(samples) > len(self._buffer):
            self._make_room(len(samples))
            used = self.end - self.start
        self._buffer[used : used + len(samples)] = samples
        self.end += len(samples)

    def view(self, start: int, end: int) -> NDArray[np.float32]:
        """Samples [start, end), valid until the next ``append``.

        Raises:
            ValueError: they are not all kept.
        """
        if not self.start <= start <= end <= self.end:
            raise ValueError(f"[{start}, {end}) is outside [{self.start}, {self.end})")
        first = self._offset + start - self.start
        return self._buffer[first : first + end - start]

    def copy(self, start: int, end: int) -> NDArray[np.float32]:
        """A copy of samples [start, end); errors as ``view``."""
        return self.view(start, end).copy()

    def forget_before(self, position: int) -> None:
        """Drops samples before ``position``; what was dropped already stays so."""
        step = min(position, self.end) - self.start
        if step > 0:
            self.start += step
            self._offset += step

    def _make_room(self, count: int) -> None:
        kept = self.end - self.start
        capacity = max(_SMALLEST, 2 * (kept + count))
        fits_well = kept + count <= len(self._buffer) // 2 and len(self._buffer) <= 2 * capacity
        target = self._buffer if fits_well else np.empty(capacity, np.float32)
        target[:kept] = self._buffer[self._offset : self._offset + kept].copy()
        self._buffer = target
        self._offset = 0


def quietest_point(samples: NDArray[np.float32], frame: int = 320, span: int = 3) -> int:
    """Index of the middle of the ``span`` quietest neighbouring frames in samples (n,).

    The last of equals wins, so that a silent tail is cut as late as possible.
    """
    count = len(samples) // frame
    if count < span:
        return len(samples) // 2
    energy = np.square(samples[: count * frame].reshape(count, frame)).sum(axis=1)
    smooth = np.convolve(energy, np.ones(span), mode="valid")
    last_lowest = len(smooth) - 1 - int(np.argmin(smooth[::-1]))
    return last_lowest * frame + span * frame // 2
