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
from antiphon_kernels.philox import philox_blocks, philox_words

_LARGEST_UNIFORM = 1.0 - 2.0**-24
_PIECE = 16384
"""Values that torch works on at a time: they stay in the cache, and are too few to be spread over
threads, whose meeting costs more than it saves once other work has the cores."""


class NoiseClass(IntEnum):
    """What a noise word is drawn for; different classes are independent."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """Everything but the token id that a noise value depends on."""

    key: int
    """64-bit request key."""
    position: int
    """Absolute position of the token being drawn, prompt included."""
    choice: int = 0
    noise_class: NoiseClass = NoiseClass.TARGET


def gumbel_of_words(words: np.ndarray) -> np.ndarray:
    """Standard Gumbel noise, fp32, of uint32 values: ``-ln(-log1p(-w))``, ``w = (x + .5) 2^-32``.

    The smallest exponential wins a draw, so the float's fine end must lie at small ``w``; the
    usual ``-ln(-ln u)`` rounds ``u`` to 1 once in 2**25 and then draws a random token.
    """
    noise = words.astype(np.float32)
    for start in range(0, len(noise), _PIECE):
        uniform = torch.from_numpy(noise[start : start + _PIECE])
        uniform.add_(0.5).mul_(2.0**-32).clamp_(max=_LARGEST_UNIFORM)
        uniform.neg_().log1p_().neg_().log_().neg_()
    return noise


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


def first_word(source: NoiseKey) -> np.ndarray:
    """uint32 (1), the word of token id 0: where one number is needed and not one for each id."""
    counter = source.position, int(source.noise_class), source.choice
    return philox_blocks(source.key, 1, counter).reshape(-1)[:1]


def gumbel_noise_all(source: NoiseKey, vocabulary: int) -> np.ndarray:
    """Noise, fp32 (vocabulary), of every token id; all four words of a counter are used."""
    words = philox_blocks(
        source.key, -(-vocabulary // 4), (source.position, int(source.noise_class), source.choice)
    )
    return gumbel_of_words(words.reshape(-1)[:vocabulary])
