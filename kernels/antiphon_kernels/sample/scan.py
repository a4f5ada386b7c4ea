"""First stage: one pass over the logits, which decides every row that has no cut to find."""

from __future__ import annotations

import triton
import triton.language as tl

from antiphon_kernels.sample.arithmetic import (
    LOWEST_KEY,
    noise_of_block,
    order_key,
    value_of_key,
)
from antiphon_kernels.sample.rows import (
    COLLECT,
    DONE,
    SEARCH,
    begin,
    best_of,
    is_counted,
    is_last,
    load_logits,
    over_temperature,
)

_BOUND_COUNT = tl.constexpr(512)
"""The largest top_k that is served from candidates, and how many bound a top_p without one."""


@triton.jit
def scan(
    logits, stride, vocabulary,
    temperatures, noises, top_ks, top_ps, log_min_ps, keys, positions, choices,
    chunk_best, chunk_token, chunk_stride, group_best, groups,
    limits, counters, sums, out, faults,
    BLOCK: tl.constexpr, GROUP_SIZE: tl.constexpr,
    CHUNKS: tl.constexpr, GROUPS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A chunk's best score with noise, or its group maxima; the row's last program combines."""
    begin(EARLY)
    chunk = tl.program_id(0)
    row = tl.program_id(1)
    temperature = tl.load(temperatures + row)
    noise = tl.load(noises + row)
    top_k = tl.load(top_ks + row)
    top_p = tl.load(top_ps + row)
    log_min_p = tl.load(log_min_ps + row)
    columns = chunk * BLOCK + tl.arange(0, BLOCK)
    values = load_logits(logits, stride, row, columns, vocabulary)
    nan = values != values
    values = tl.where(nan, float("-inf"), values)
    at = row * 2 * chunk_stride + chunk
    tl.store(chunk_best + at, tl.max(values, 0))
    tl.store(chunk_token + at, tl.max(nan.to(tl.int32), 0))
    cuts = is_counted(top_k, vocabulary) | (top_p < 1.0) | (log_min_p > float("-inf"))
    # The best score of a row without noise survives every filter.
    filtered = (noise != 0.0) & cuts
    if filtered:
        maxima = tl.max(tl.reshape(values, [BLOCK // GROUP_SIZE, GROUP_SIZE]), 1)
        places = chunk * (BLOCK // GROUP_SIZE) + tl.arange(0, BLOCK // GROUP_SIZE)
        tl.store(group_best + row * groups + places, maxima, mask=places < groups)
    else:
        scores = over_temperature(values, temperature)
        if noise != 0.0:
            drawn = noise_of_block(
                chunk * BLOCK, tl.load(keys + row), tl.load(positions + row),
                tl.load(choices + row), BLOCK,
            )  # fmt: skip
            scores = scores + noise * drawn
        highest, token = best_of(scores, columns)
        tl.store(chunk_best + at + chunk_stride, highest)
        tl.store(chunk_token + at + chunk_stride, token)
    if is_last(counters + row * 4 + 2):
        _combine(
            chunk_best + row * 2 * chunk_stride, chunk_token + row * 2 * chunk_stride,
            chunk_stride, group_best + row * groups, groups, vocabulary,
            temperature, filtered, top_k, top_p, log_min_p,
            limits + row * 3, counters + row * 4, sums + row * 2, out + row, faults + row,
            CHUNKS, GROUPS,
        )  # fmt: skip


@triton.jit
def _combine(
    chunk_best, chunk_token, chunk_stride, group_best, groups, vocabulary,
    temperature, filtered, top_k, top_p, log_min_p,
    limits, counters, sums, out, faults, CHUNKS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """The row's fault, its token when it has no filter, else its maximum and a bound of its cut."""
    places = tl.arange(0, CHUNKS)
    used = places < tl.num_programs(0)
    highest = tl.max(tl.load(chunk_best + places, mask=used, other=float("-inf")), 0)
    nan = tl.max(tl.load(chunk_token + places, mask=used, other=0), 0)
    # Rounding keeps the order, so that this is the largest quotient.
    highest = tl.math.div_rn(highest, temperature)
    fault = tl.where(highest == float("-inf"), 2, tl.where(highest == float("inf"), 3, 0))
    fault = tl.where(nan != 0, 1, fault)
    tl.store(faults, fault)
    phase = tl.full((), DONE, tl.int32)
    if fault != 0:
        tl.store(out, 0)
    elif filtered:
        phase = tl.full((), COLLECT, tl.int32)
        counted = is_counted(top_k, vocabulary)
        bound = _below((highest + log_min_p) * temperature)
        if counted | (top_p < 1.0):
            wanted = tl.where(counted, top_k, _BOUND_COUNT)
            reached = _below(_lower_bound(group_best, groups, wanted, GROUPS))
            # top_p counts mass below min_p's cut, so that cut bounds nothing beside top_p.
            bound = tl.where(top_p < 1.0, reached, tl.maximum(reached, bound))
            phase = tl.where(wanted > _BOUND_COUNT, SEARCH, COLLECT)
        tl.store(limits, highest)
        tl.store(limits + 1, bound)
        tl.store(counters + 1, 0)
        tl.store(sums, tl.full((), 0, tl.int64))
        tl.store(sums + 1, tl.full((), -1, tl.int64))
    else:
        noisy = tl.load(chunk_best + chunk_stride + places, mask=used, other=float("-inf"))
        tokens = tl.load(chunk_token + chunk_stride + places, mask=used, other=0x7FFFFFFF)
        _, token = best_of(noisy, tokens)
        tl.store(out, token)
    tl.store(counters, phase)


@triton.jit
def _lower_bound(group_best, groups, wanted, GROUPS: tl.constexpr):
    """A value that at least ``wanted`` logits reach, -inf if there are too few groups.

    The wanted-th largest of n group maxima is at most the wanted-th largest logit. It is
    bisected to the upper 16 bits of its order key, which only lowers it.
    """
    places = tl.arange(0, GROUPS)
    maxima = tl.load(group_best + places, mask=places < groups, other=float("-inf"))
    prefixes = order_key(maxima) >> 16
    low = tl.full((), -32768, tl.int32)
    for bit in tl.static_range(16):
        middle = low + (32768 >> bit)
        reached = tl.sum((prefixes >= middle).to(tl.int32), 0) >= wanted
        low = tl.where(reached, middle, low)
    key = low << 16
    return tl.where(key <= LOWEST_KEY, float("-inf"), value_of_key(tl.maximum(key, LOWEST_KEY)))


@triton.jit
def _below(bound):
    """A little less: the quotient of a logit below it is below the bound's, not equal to it."""
    return bound - tl.abs(bound) * 4e-7
