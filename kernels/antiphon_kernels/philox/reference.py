"""The Philox generator in numpy."""

from __future__ import annotations

import numpy as np

_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_ROUNDS = 10
_CHUNK = 8192
"""Counters per pass over a whole vocabulary: the working set stays in the cache."""


def philox_words(counters: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Philox4x32-10 of N counters: uint64 (4, N) and keys (2, N) or (2, 1), all below 2**32.

    Returns the words, uint64 (4, N) with values below 2**32.
    """
    x0, x1, x2, x3 = (counters[lane].copy() for lane in range(4))
    key0, key1 = keys[0], keys[1]
    for _ in range(_ROUNDS):
        low0, low1 = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]
        np.right_shift(low1, _SHIFT, out=x0)
        np.right_shift(low0, _SHIFT, out=x2)
        x0 ^= x1
        x0 ^= key0
        x2 ^= x3
        x2 ^= key1
        x1, x3 = low1, low0
        x1 &= _MASK
        x3 &= _MASK
        key0 = (key0 + _WEYL[0]) & _MASK
        key1 = (key1 + _WEYL[1]) & _MASK
    return np.stack((x0, x1, x2, x3))


def philox_blocks(key: int, blocks: int, rest: tuple[int, int, int]) -> np.ndarray:
    """As :func:`antiphon_kernels.philox.philox_blocks`."""
    words = np.empty((blocks, 4), dtype=np.uint32)
    keys = np.array([[key & 0xFFFFFFFF], [key >> 32]], dtype=np.uint64)
    for start in range(0, blocks, _CHUNK):
        end = min(start + _CHUNK, blocks)
        counters = np.empty((4, end - start), dtype=np.uint64)
        counters[0] = np.arange(start, end, dtype=np.uint64)
        for lane, value in enumerate(rest, start=1):
            counters[lane] = value
        words[start:end] = philox_words(counters, keys).T
    return words
