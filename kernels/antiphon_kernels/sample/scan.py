"""First stage: one pass over the logits, which decides every row that has no cut to find."""

from __future__ import annotations

import triton
import triton.language as tl

from antiphon_kernels.sample.arithmetic import LOWEST_KEY, order_key, value_of_key
from antiphon_kernels.sample.rows import (
    COLLECT,
    DONE,
    SEARCH,
    begin,
    best_of,
    is_counted,
    is_last,
    row_of,
    source_of,
)
from antiphon_kernels.sample.spans import group_maxima, noisy_best, plain_best

_BOUND_COUNT = tl.constexpr(768)
"""The largest top_k that is served from candidates, and how many bound a top_p without one."""


@triton.jit(do_not_specialize=["blocks"])
def scan(
    logits, stride, vocabulary, rows, bits, words, forced,
    temperatures, noises, top_ks, top_ps, log_min_ps, keys, positions, choices,
    span_best, span_token, span_stride, group_best, groups,
    limits, counters, sums, out, faults,
    blocks, BLOCK: tl.constexpr, GROUP_SIZE: tl.constexpr,
    SPANS: tl.constexpr, GROUPS: tl.constexpr,
    EARLY: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """A span's best score with noise, or its group maxima; the row's last program combines.
    A forced id needs neither."""
    begin(EARLY)
    row = row_of(rows, tl.program_id(1))
    only = -1
    if bits is not None:
        only = tl.load(forced + tl.program_id(1))
    if only < 0:
        _scan_span(
            source_of(logits, stride, vocabulary, row, bits, words, tl.program_id(1)),
            row, vocabulary, temperatures, noises, top_ks, top_ps, log_min_ps, keys, positions,
            choices, span_best, span_token, span_stride, group_best, groups,
            limits, counters, sums, out, faults,
            blocks, BLOCK, GROUP_SIZE, SPANS, GROUPS, NATIVE,
        )  # fmt: skip
    elif tl.program_id(0) == 0:
        # One finite logit is left, whatever the settings.
        tl.store(out + row, only)
        tl.store(faults + row, 0)
        tl.store(counters + row * 4, DONE)


@triton.jit
def _scan_span(
    source, row, vocabulary,
    temperatures, noises, top_ks, top_ps, log_min_ps, keys, positions, choices,
    span_best, span_token, span_stride, group_best, groups,
    limits, counters, sums, out, faults,
    blocks, BLOCK: tl.constexpr, GROUP_SIZE: tl.constexpr,
    SPANS: tl.constexpr, GROUPS: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    span = tl.program_id(0)
    temperature = tl.load(temperatures + row)
    noise = tl.load(noises + row)
    top_k = tl.load(top_ks + row)
    top_p = tl.load(top_ps + row)
    log_min_p = tl.load(log_min_ps + row)
    cuts = is_counted(top_k, vocabulary) | (top_p < 1.0) | (log_min_p > float("-inf"))
    # The best score of a row without noise survives every filter.
    filtered = (noise != 0.0) & cuts
    first = span * (blocks * BLOCK)
    highest = tl.full((), float("-inf"), tl.float32)
    token = first
    if filtered:
        most, nan = group_maxima(
            source, first, group_best + row * groups, groups, blocks, BLOCK, GROUP_SIZE
        )
    elif noise != 0.0:
        most, nan, highest, token = noisy_best(
            source, first, temperature, noise, tl.load(keys + row),
            tl.load(positions + row), tl.load(choices + row), float("-inf"),
            blocks, BLOCK, False, NATIVE,
        )  # fmt: skip
    else:
        most, nan, highest, token = plain_best(source, first, temperature, blocks, BLOCK)
    at = row * 2 * span_stride + span
    tl.store(span_best + at, most)
    tl.store(span_token + at, nan)
    tl.store(span_best + at + span_stride, highest)
    tl.store(span_token + at + span_stride, token)
    if is_last(counters + row * 4 + 2):
        _combine(
            span_best + row * 2 * span_stride, span_token + row * 2 * span_stride,
            span_stride, group_best + row * groups, groups, vocabulary,
            temperature, filtered, top_k, top_p, log_min_p,
            limits + row * 3, counters + row * 4, sums + row * 2, out + row, faults + row,
            SPANS, GROUPS,
        )  # fmt: skip


@triton.jit
def _combine(
    span_best, span_token, span_stride, group_best, groups, vocabulary,
    temperature, filtered, top_k, top_p, log_min_p,
    limits, counters, sums, out, faults, SPANS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """The row's fault, its token when it has no filter, else its maximum and a bound of its cut."""
    places = tl.arange(0, SPANS)
    used = places < tl.num_programs(0)
    highest = tl.max(tl.load(span_best + places, mask=used, other=float("-inf")), 0)
    nan = tl.max(tl.load(span_token + places, mask=used, other=0), 0)
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
        noisy = tl.load(span_best + span_stride + places, mask=used, other=float("-inf"))
        tokens = tl.load(span_token + span_stride + places, mask=used, other=0x7FFFFFFF)
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
