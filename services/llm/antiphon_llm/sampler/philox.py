"""Counter-based randomness: Philox4x32-10 words and the Gumbel noise made of them.

A draw depends on nothing but (request key, position, class, choice, token id), so it is the
same in any batch, order, chunking or after a preemption.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch

_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_ROUNDS = 10
_CHUNK = 8192
"""Counters per pass over a whole vocabulary: the working set stays in the cache."""
_LARGEST_UNIFORM = 1.0 - 2.0**-24


class NoiseClass(IntEnum):
    """What a noise word is drawn for; different classes are independent."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


def request_key(seed: int) -> int:
    """The 64-bit key of a request: SplitMix64 of its seed."""
    mask = (1 << 64) - 1
    mixed = (seed + 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return mixed ^ (mixed >> 31)


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """Everything but the token id that a noise value depends on."""

    key: int
    """64-bit request key."""
    position: int
    """Absolute position of the token being drawn, prompt included."""
    choice: int = 0
    noise_class: NoiseClass = NoiseClass.TARGET


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


def gumbel_of_words(words: np.ndarray) -> np.ndarray:
    """Standard Gumbel noise, fp32, of uint32 values: ``-ln(-log1p(-w))``, ``w = (x + .5) 2^-32``.

    The smallest exponential wins a draw, so the float's fine end must lie at small ``w``; the
    usual ``-ln(-ln u)`` rounds ``u`` to 1 once in 2**25 and then draws a random token.
    """
    uniform = torch.from_numpy(words.astype(np.float32))
    uniform.add_(0.5).mul_(2.0**-32).clamp_(max=_LARGEST_UNIFORM)
    return uniform.neg_().log1p_().neg_().log_().neg_().numpy()


def gumbel_noise(groups: Sequence[tuple[NoiseKey, np.ndarray]]) -> list[np.ndarray]:
    """Noise, fp32 (n_i), for the token ids, int64 (n_i), of each group; one pass over all."""
    sizes = [len(ids) for _, ids in groups]
    total = sum(sizes)
    counters = np.empty((4, total), dtype=np.uint64)
    keys = np.empty((2, total), dtype=np.uint64)
    lanes = np.empty(total, dtype=np.int64)
    start = 0
    for (source, ids), size in zip(groups, sizes, strict=True):
        span = slice(start, start + size)
        counters[0, span] = ids >> 2
        counters[1, span], counters[2, span] = source.position, int(source.noise_class)
        counters[3, span] = source.choice
        keys[0, span], keys[1, span] = source.key & 0xFFFFFFFF, source.key >> 32
        np.bitwise_and(ids, 3, out=lanes[span])
        start += size
    words = philox_words(counters, keys)
    noise = gumbel_of_words(words[lanes, np.arange(total)])
    return np.split(noise, np.cumsum(sizes)[:-1])


def gumbel_noise_all(source: NoiseKey, vocabulary: int) -> np.ndarray:
    """Noise, fp32 (vocabulary), of every token id; all four words of a counter are used."""
    blocks = -(-vocabulary // 4)
    noise = np.empty((blocks, 4), dtype=np.float32)
    keys = np.array([[source.key & 0xFFFFFFFF], [source.key >> 32]], dtype=np.uint64)
    for start in range(0, blocks, _CHUNK):
        end = min(start + _CHUNK, blocks)
        counters = np.empty((4, end - start), dtype=np.uint64)
        counters[0] = np.arange(start, end, dtype=np.uint64)
        counters[1], counters[2] = source.position, int(source.noise_class)
        counters[3] = source.choice
        words = np.ascontiguousarray(philox_words(counters, keys).T)
        noise[start:end] = gumbel_of_words(words)
    return noise.reshape(-1)[:vocabulary]
