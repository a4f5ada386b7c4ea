"""Where a stream is cut into hops: a function of the frame's index alone.

Equal input is then cut equally however it arrived, and gives the same samples to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

_UNIT_RATE = Fraction(25, 2)
"""Ramps are counted in frames of 12.5 Hz; faster codecs have several to a unit."""


class HopPlan:
    """Hops of one codec and direction.

    Args:
        ramp: lengths of the first hops in units of 80 ms; the last one repeats.
        frame_rate: frames a second.
        first_frames: frames that the first hop needs where more follow.

    Attributes:
        sizes: lengths that hops have, ascending; only a short stream's single hop may have another.
    """

    def __init__(self, ramp: Sequence[int], frame_rate: Fraction, first_frames: int = 1) -> None:
        if not ramp or min(ramp) < 1:
            raise ValueError(f"a ramp is one or more lengths of at least 1, got {list(ramp)}")
        unit = max(1, round(frame_rate / _UNIT_RATE))
        lengths = [length * unit for length in ramp]
        lengths[0] = max(lengths[0], first_frames)
        self._first_frames = first_frames
        self._repeated = lengths[-1] if len(lengths) > 1 else ramp[-1] * unit
        self._ends: list[int] = []
        for length in lengths:
            self._ends.append(length + (self._ends[-1] if self._ends else 0))
        longest = max(lengths)
        parts = {1 << power for power in range(longest.bit_length())}
        self.sizes = sorted({*lengths, self._repeated, first_frames} | parts)

    @property
    def longest(self) -> int:
        """Frames of the longest hop."""
        return self.sizes[-1]

    @property
    def steady(self) -> int:
        """Frames of the hop that repeats."""
        return self._repeated

    def boundary(self, position: int) -> int:
        """The end of the hop that frame ``position`` belongs to."""
        for end in self._ends:
            if position < end:
                return end
        beyond = position - self._ends[-1]
        return self._ends[-1] + (beyond // self._repeated + 1) * self._repeated

    def next_hop(self, position: int, available: int, forced: int, *, ended: bool) -> int:
        """Frames of the next hop; 0 if it has to wait.

        Args:
            position: frames that have been run.
            available: frames that have arrived, those run included.
            forced: frames to run without waiting for a whole hop.
            ended: nothing follows the available frames.
        """
        boundary = self.boundary(position)
        end = boundary if available >= boundary else min(forced, boundary)
        length = end - position
        if length <= 0:
            return 0
        if position == 0 and length < self._first_frames:
            return length if ended and end == available else 0
        return max(size for size in self.sizes if size <= length)
