"""Philox4x32-10, the counter-based random generator: words that depend on nothing else."""

from __future__ import annotations

import numpy as np

from antiphon_kernels.philox import reference
from antiphon_kernels.philox.reference import philox_words
from antiphon_kernels.runtime import native_for

__all__ = ["philox_blocks", "philox_words"]


def philox_blocks(key: int, blocks: int, rest: tuple[int, int, int]) -> np.ndarray:
    """Words, uint32 (blocks, 4), of the counters ``(0 .. blocks - 1, *rest)``.

    Args:
        key: 64 bits.
        blocks: number of counters.
        rest: the counters' other three words, each below 2**32.
    """
    native = native_for("philox")
    if native is None:
        return reference.philox_blocks(key, blocks, rest)
    words = np.empty((blocks, 4), dtype=np.uint32)
    native.philox(key, rest, words)
    return words
