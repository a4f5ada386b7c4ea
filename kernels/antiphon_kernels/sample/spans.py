# pyright: reportGeneralTypeIssues=false
# Triton declares functions that return tuples as returning nothing.
"""The best token of a span: several blocks of a row, reduced once at the end.

Each lane keeps its own best over the blocks and loads the next block before it works on the
current one, so that the memory stays busy.
"""

from __future__ import annotations

import triton
import triton.language as tl

from antiphon_kernels.sample.arithmetic import (
    gumbel_of_words,
    noise_of_ids,
    rough_gumbel_of_words,
    words_of_block,
)
from antiphon_kernels.sample.rows import (
    best_of,
    load_ahead,
    load_block,
    over_temperature,
    without_nan,
)

_MARGIN = tl.constexpr(5e-4)
_RELATIVE_MARGIN = tl.constexpr(2e-6)
"""Two rough scores err by less: each noise by 1e-4, each rounding by a few 2^-24 of a score."""


@triton.jit
def plain_best(source, first, temperature, blocks, BLOCK: tl.constexpr):
    """(largest logit, NaN or not, best score, its lowest id) of the span from ``first`` on."""
    offsets = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    nan = tl.zeros([BLOCK], tl.int32)
    ids = first + offsets
    ahead = load_block(source, first, BLOCK)
    for block in range(blocks):
        start = first + block * BLOCK
        columns = start + offsets
        values, bad = without_nan(ahead)
        ahead = load_ahead(source, start + BLOCK, block + 1 < blocks, BLOCK)
        nan |= bad
        most = tl.maximum(most, values)
        scores = over_temperature(values, temperature)
        better = scores > best
        best = tl.where(better, scores, best)
        ids = tl.where(better, columns, ids)
    highest, token = best_of(best, ids)
    return tl.max(most, 0), tl.max(nan, 0), highest, token


@triton.jit
def noisy_best(
    source, first, temperature, noise, key, position, choice, cut,
    blocks, BLOCK: tl.constexpr, CUT: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """As ``plain_best`` of the scores with noise; with CUT of those whose score reaches ``cut``.

    Rough scores choose the best unless a second one is within their error. Then only that one
    needs its exact noise; else the whole span is computed exactly.
    """
    offsets = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    second = tl.full([BLOCK], float("-inf"), tl.float32)
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    nan = tl.zeros([BLOCK], tl.int32)
    ids = first + offsets
    inverse = 1.0 / temperature
    ahead = load_block(source, first, BLOCK)
    for block in range(blocks):
        start = first + block * BLOCK
        columns = start + offsets
        values, bad = without_nan(ahead)
        ahead = load_ahead(source, start + BLOCK, block + 1 < blocks, BLOCK)
        nan |= bad
        most = tl.maximum(most, values)
        if CUT:
            values = tl.where(over_temperature(values, temperature) >= cut, values, float("-inf"))
        words = words_of_block(start, key, position, choice, BLOCK)
        rough = values * inverse + noise * rough_gumbel_of_words(words, NATIVE)
        better = rough > best
        second = tl.maximum(second, tl.where(better, best, rough))
        best = tl.where(better, rough, best)
        ids = tl.where(better, columns, ids)
    top, token = best_of(best, ids)
    limit = top - (_MARGIN + tl.abs(top) * _RELATIVE_MARGIN)
    near = (best >= limit).to(tl.int32) + (second >= limit).to(tl.int32)
    if top == float("-inf"):
        highest = top
    elif tl.sum(near, 0) == 1:
        value = tl.load(source[0] + token).to(tl.float32)
        exact = noise_of_ids(token, key, position, choice)
        highest = tl.math.div_rn(value, temperature) + noise * exact
    else:
        highest, token = _exact_best(
            source, first, temperature, noise, key, position, choice, cut, blocks, BLOCK, CUT
        )  # fmt: skip
    return tl.max(most, 0), tl.max(nan, 0), highest, token


@triton.jit
def _exact_best(
    source, first, temperature, noise, key, position, choice, cut,
    blocks, BLOCK: tl.constexpr, CUT: tl.constexpr,
):  # fmt: skip
    highest = tl.full((), float("-inf"), tl.float32)
    token = first
    for block in range(blocks):
        start = first + block * BLOCK
        columns = start + tl.arange(0, BLOCK)
        values, _ = without_nan(load_block(source, start, BLOCK))
        scores = over_temperature(values, temperature)
        if CUT:
            scores = tl.where(scores >= cut, scores, float("-inf"))
        words = words_of_block(start, key, position, choice, BLOCK)
        score, column = best_of(scores + noise * gumbel_of_words(words), columns)
        # Of equal scores the earlier block's stays: it has the lower id.
        token = tl.where(score > highest, column, token)
        highest = tl.maximum(highest, score)
    return highest, token


@triton.jit
def group_maxima(
    source, first, group_best, groups,
    blocks, BLOCK: tl.constexpr, GROUP_SIZE: tl.constexpr,
):  # fmt: skip
    """Stores the largest logit of every group; returns (largest logit, NaN or not)."""
    in_block: tl.constexpr = BLOCK // GROUP_SIZE
    most = tl.full([in_block], float("-inf"), tl.float32)
    nan = tl.zeros([BLOCK], tl.int32)
    ahead = load_block(source, first, BLOCK)
    for block in range(blocks):
        start = first + block * BLOCK
        values, bad = without_nan(ahead)
        ahead = load_ahead(source, start + BLOCK, block + 1 < blocks, BLOCK)
        nan |= bad
        maxima = tl.max(tl.reshape(values, [in_block, GROUP_SIZE]), 1)
        places = start // GROUP_SIZE + tl.arange(0, in_block)
        tl.store(group_best + places, maxima, mask=places < groups)
        most = tl.maximum(most, maxima)
    return tl.max(most, 0), tl.max(nan, 0)
