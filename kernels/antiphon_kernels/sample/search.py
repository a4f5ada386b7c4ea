"""The cut of a row by bisection over order keys: exact for any k, any nucleus, any ties."""

from __future__ import annotations

import triton
import triton.language as tl

from antiphon_kernels.sample.arithmetic import LOWEST_KEY, mass_of, order_key, value_of_key


@triton.jit
def _reaching(
    logits, vocabulary, temperature, highest, cut, BY_MASS: tl.constexpr, BLOCK: tl.constexpr
):
    """How many scores reach the cut, or their mass, int64."""
    total = tl.full((), 0, tl.int64)
    for start in range(0, vocabulary, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        raw = tl.load(logits + columns, mask=columns < vocabulary, other=float("-inf"))
        scores = tl.math.div_rn(raw.to(tl.float32), temperature)
        reaches = (scores >= cut) & (columns < vocabulary)
        if BY_MASS:
            weights = tl.where(reaches, mass_of(scores - highest), 0)
        else:
            weights = reaches.to(tl.int64)
        total += tl.sum(weights, 0)
    return total


@triton.jit
def _largest_cut(
    logits,
    vocabulary,
    temperature,
    highest,
    low,
    wanted,
    BY_MASS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The largest key, from ``low`` on, whose value ``wanted`` (fp64) or more still reach."""
    high = order_key(highest)
    while low < high:
        # The upper middle, in 64 bits: the difference of two keys can exceed 31.
        middle = (low.to(tl.int64) + (high.to(tl.int64) - low.to(tl.int64) + 1) // 2).to(tl.int32)
        total = _reaching(
            logits, vocabulary, temperature, highest, value_of_key(middle), BY_MASS, BLOCK
        )
        reached = total.to(tl.float64) >= wanted
        low = tl.where(reached, middle, low)
        high = tl.where(reached, high, middle - 1)
    return low


@triton.jit
def cut_of_row(
    logits, vocabulary, temperature, highest, top_k, top_p, log_min_p, BLOCK: tl.constexpr
):
    """The least score, fp32, that top_k, then top_p, then min_p keep.

    ``logits`` points at the row, ``highest`` is its largest score, finite.
    """
    low = tl.full((), LOWEST_KEY, tl.int32)
    if (top_k > 0) & (top_k < vocabulary):
        low = _largest_cut(
            logits, vocabulary, temperature, highest, low, top_k.to(tl.float64), False, BLOCK
        )
    if top_p < 1.0:
        total = _reaching(logits, vocabulary, temperature, highest, value_of_key(low), True, BLOCK)
        low = _largest_cut(
            logits, vocabulary, temperature, highest, low, top_p * total.to(tl.float64), True, BLOCK
        )
    return tl.maximum(value_of_key(low), highest + log_min_p)
