"""Streaming sample-rate conversion whose result does not depend on how the input is cut.

Output sample j is a fixed sum over the input samples round j * source / target, weighted by a
Hann-windowed sinc (width 6, rolloff 0.99: torchaudio's default kernel). The sum runs tap by tap
over whole arrays, so each sample sees the same additions in the same order for every cut: the
result is equal to the last bit. soxr is not used because its filters delay a live stream by
several milliseconds; this one needs ``width`` samples (0.4 ms at 24 kHz) of lookahead.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, gcd

import numpy as np
from numpy.typing import NDArray

_ZERO_CROSSINGS = 6
_ROLLOFF = 0.99
_OUTPUT_BLOCK = 1 << 15


@lru_cache(maxsize=32)
def _kernel(orig: int, new: int) -> NDArray[np.float32]:
    """Weights (2 * width, new) by tap and output phase, for coprime rates orig and new."""
    cutoff = min(orig, new) * _ROLLOFF
    width = ceil(_ZERO_CROSSINGS * orig / cutoff)
    fraction = (np.arange(new, dtype=np.int64) * orig % new) / new
    taps = np.arange(1 - width, width + 1, dtype=np.float64)
    t = (taps[:, None] - fraction[None, :]) * (cutoff / orig)
    window = np.cos(np.clip(t, -_ZERO_CROSSINGS, _ZERO_CROSSINGS) * (np.pi / _ZERO_CROSSINGS / 2))
    return (np.sinc(t) * window**2 * (cutoff / orig)).astype(np.float32)


class Resampler:
    """Converts a mono stream from one rate to another, piece by piece.

    Args:
        source_rate: samples a second of the input, at least 1.
        target_rate: samples a second of the output, at least 1.

    The whole output has ceil(n * target_rate / source_rate) samples for n samples of input.
    """

    def __init__(self, source_rate: int, target_rate: int) -> None:
        if source_rate < 1 or target_rate < 1:
            raise ValueError(f"rates must be positive, got {source_rate} and {target_rate}")
        self.source_rate = source_rate
        self.target_rate = target_rate
        divisor = gcd(source_rate, target_rate)
        self._orig = source_rate // divisor
        self._new = target_rate // divisor
        self._weights = _kernel(self._orig, self._new) if self._orig != self._new else None
        self._width = 0 if self._weights is None else len(self._weights) // 2
        self.reset()

    def reset(self) -> None:
        """Forgets all input: the next sample is the first."""
        # The buffer starts `width` zeros before the first sample.
        self._buffer = np.zeros(self._width, np.float32)
        self._buffer_start = -self._width
        self._received = 0
        self._emitted = 0

    def process(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Takes samples (n,) and returns the output (m,) that no later input can change."""
        if self._weights is None:
            return samples
        self._buffer = np.concatenate((self._buffer, samples.astype(np.float32, copy=False)))
        self._received += len(samples)
        ready = -(-(self._received - self._width) * self._new // self._orig)
        return self._emit_until(max(ready, self._emitted))

    def flush(self) -> NDArray[np.float32]:
        """Ends the stream: returns the rest of the output and resets."""
        if self._weights is None:
            return np.zeros(0, np.float32)
        total = -(-self._received * self._new // self._orig)
        self._buffer = np.concatenate((self._buffer, np.zeros(self._width, np.float32)))
        tail = self._emit_until(total)
        self.reset()
        return tail

    def _emit_until(self, end: int) -> NDArray[np.float32]:
        assert self._weights is not None
        blocks = []
        while self._emitted < end:
            stop = min(self._emitted + _OUTPUT_BLOCK, end)
            position = np.arange(self._emitted, stop, dtype=np.int64) * self._orig
            base = position // self._new - self._buffer_start - self._width + 1
            # The kernel's columns are ordered by output index, whose phase repeats every `new`.
            phase = np.arange(self._emitted, stop, dtype=np.int64) % self._new
            total = np.zeros(stop - self._emitted, np.float32)
            for tap, weights in enumerate(self._weights):
                total += weights[phase] * self._buffer[base + tap]
            blocks.append(total)
            self._emitted = stop
        keep_from = self._emitted * self._orig // self._new - self._width + 1
        self._buffer = self._buffer[max(keep_from - self._buffer_start, 0) :]
        self._buffer_start = max(keep_from, self._buffer_start)
        return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)


def resample(
    samples: NDArray[np.float32], source_rate: int, target_rate: int
) -> NDArray[np.float32]:
    """The whole signal (n,) at once: ceil(n * target_rate / source_rate) samples."""
    resampler = Resampler(source_rate, target_rate)
    return np.concatenate((resampler.process(samples), resampler.flush()))
