"""Philox words of the kernels against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from antiphon_kernels.philox import philox_blocks, reference

LARGEST = 2**32 - 1


@pytest.mark.parametrize("blocks", [0, 1, 15, 17, 513, 5000])
def test_words_equal_the_reference(isa: str, threads: int, blocks: int) -> None:
    for key, rest in ((0, (0, 0, 0)), (0x123456789ABCDEF0, (7, 1, 3)), (2**64 - 1, (LARGEST,) * 3)):
        words = philox_blocks(key, blocks, rest)
        assert words.dtype == np.uint32
        assert np.array_equal(words, reference.philox_blocks(key, blocks, rest))
