"""Last stages: rows whose cut lies beyond the candidates. Exact for any k, any nucleus, any ties.

Scores are counted and weighed in buckets by their depth below the row's best. The bucket in
which a cut lies is then gathered and bisected in registers; of a bucket that does not fit, the
whole row is read again for each step.
"""

from __future__ import annotations

import triton
import triton.language as tl

from antiphon_kernels.sample.arithmetic import mass_of, order_key, value_of_key
from antiphon_kernels.sample.candidates import largest_cut
from antiphon_kernels.sample.rows import (
    DRAW,
    SEARCH,
    begin,
    is_counted,
    is_last,
    load_block,
    over_temperature,
    row_of,
    source_of,
)
from antiphon_kernels.sample.spans import noisy_best

_BUCKETS_PER_UNIT = tl.constexpr(64.0)


@triton.jit
def _bucket(scores, highest, BUCKETS: tl.constexpr):
    """int32 buckets, rising with the depth; the last takes all that is deep, which has no mass."""
    return tl.minimum((highest - scores) * _BUCKETS_PER_UNIT, BUCKETS - 1.0).to(tl.int32)


@triton.jit(do_not_specialize=["blocks"])
def search(
    logits, stride, vocabulary, rows, bits, words, temperatures, top_ks, top_ps, log_min_ps,
    candidates, limits, counters, sums, counts, masses,
    blocks, BLOCK: tl.constexpr, KEPT: tl.constexpr, BUCKETS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Fills the histograms of searched rows; a row's last program finds its cut."""
    begin(EARLY)
    row = row_of(rows, tl.program_id(1))
    source = source_of(logits, stride, vocabulary, row, bits, words, tl.program_id(1))
    if tl.load(counters + row * 4) == SEARCH:
        highest = tl.load(limits + row * 3)
        temperature = tl.load(temperatures + row)
        top_k = tl.load(top_ks + row)
        top_p = tl.load(top_ps + row)
        counted = is_counted(top_k, vocabulary)
        counts += row * BUCKETS
        masses += row * BUCKETS
        for block in range(blocks):
            start = (tl.program_id(0) * blocks + block) * BLOCK
            columns = start + tl.arange(0, BLOCK)
            values = load_block(source, start, BLOCK)
            scores = over_temperature(values, temperature)
            bucket = _bucket(scores, highest, BUCKETS)
            shallow = bucket < BUCKETS - 1
            if counted:
                tl.atomic_add(counts + bucket, 1, mask=shallow)
                deep = ((columns < vocabulary) & (bucket == BUCKETS - 1)).to(tl.int32)
                tl.atomic_add(counts + BUCKETS - 1, tl.sum(deep, 0))
            if top_p < 1.0:
                tl.atomic_add(masses + bucket, mass_of(scores - highest), mask=shallow)
        if is_last(counters + row * 4 + 3):
            cut = _cut(
                source, temperature, highest, counted, top_k, top_p,
                candidates + row * KEPT, tl.load(sums + row * 2), counts, masses,
                BLOCK, KEPT, BUCKETS,
            )  # fmt: skip
            tl.store(limits + row * 3 + 2, tl.maximum(cut, highest + tl.load(log_min_ps + row)))
            tl.store(counters + row * 4, DRAW)


@triton.jit
def _cut(
    source, temperature, highest, counted, top_k, top_p,
    values, row_mass, counts, masses,
    BLOCK: tl.constexpr, KEPT: tl.constexpr, BUCKETS: tl.constexpr,
):  # fmt: skip
    """The least score that top_k and then top_p keep, from the row's histograms."""
    buckets = tl.arange(0, BUCKETS)
    cut = tl.full((), float("-inf"), tl.float32)
    mass = tl.load(masses + buckets)
    total = row_mass
    if counted:
        count = tl.load(counts + buckets)
        place = tl.sum((tl.cumsum(count, 0) < top_k).to(tl.int32), 0)
        above = tl.sum(tl.where(buckets < place, count, 0), 0).to(tl.int64)
        cut = _cut_in_bucket(
            source, temperature, highest, place, above,
            top_k.to(tl.float64), values, False, BLOCK, KEPT, BUCKETS,
        )  # fmt: skip
        if top_p < 1.0:
            # Of the cut's own bucket only the survivors have mass, and of deeper ones nothing.
            total = _reaching(source, temperature, highest, cut, True, BLOCK)
            above = tl.sum(tl.where(buckets < place, mass, 0), 0)
            mass = tl.where(buckets < place, mass, tl.where(buckets == place, total - above, 0))
    if top_p < 1.0:
        share = top_p * total.to(tl.float64)
        place = tl.sum((tl.cumsum(mass, 0).to(tl.float64) < share).to(tl.int32), 0)
        above = tl.sum(tl.where(buckets < place, mass, 0), 0)
        nucleus = _cut_in_bucket(
            source, temperature, highest, place, above,
            share, values, True, BLOCK, KEPT, BUCKETS,
        )  # fmt: skip
        cut = tl.maximum(cut, nucleus)
    return cut


@triton.jit
def _cut_in_bucket(
    source, temperature, highest, place, above, wanted, values,
    BY_MASS: tl.constexpr, BLOCK: tl.constexpr, KEPT: tl.constexpr, BUCKETS: tl.constexpr,
):  # fmt: skip
    """The least score of bucket ``place`` that is kept when ``above`` lies above the bucket."""
    found = tl.full((), 0, tl.int32)
    least = tl.full((), float("inf"), tl.float32)
    most = tl.full((), float("-inf"), tl.float32)
    # The list may still be read: by the cut of top_k before that of top_p.
    tl.debug_barrier()
    vocabulary = source[1]
    ahead = load_block(source, 0, BLOCK)
    for start in range(0, vocabulary, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        scores = over_temperature(ahead, temperature)
        ahead = load_block(source, start + BLOCK, BLOCK)
        inside = (_bucket(scores, highest, BUCKETS) == place) & (columns < vocabulary)
        flags = inside.to(tl.int32)
        here = tl.sum(flags, 0)
        if here > 0:
            places = found + tl.cumsum(flags, 0) - 1
            tl.store(values + places, scores, mask=inside & (places < KEPT))
            least = tl.minimum(least, tl.min(tl.where(inside, scores, float("inf")), 0))
            most = tl.maximum(most, tl.max(tl.where(inside, scores, float("-inf")), 0))
        found += here
    tl.debug_barrier()
    if found <= KEPT:
        places = tl.arange(0, KEPT)
        valid = places < found
        scores = tl.load(values + places, mask=valid, other=float("-inf"))
        cut = largest_cut(scores, valid, highest, above, wanted, BY_MASS)
    else:
        cut = _bisected(source, temperature, highest, least, most, wanted, BY_MASS, BLOCK)
    return cut


@triton.jit
def _bisected(
    source, temperature, highest, least, most, wanted,
    BY_MASS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest value in [least, most] that ``wanted`` or more reach, as ``least`` is."""
    low = order_key(least)
    high = order_key(most)
    while low < high:
        # The upper middle, in 64 bits: the difference of two keys can exceed 31.
        middle = (low.to(tl.int64) + (high.to(tl.int64) - low.to(tl.int64) + 1) // 2).to(tl.int32)
        total = _reaching(source, temperature, highest, value_of_key(middle), BY_MASS, BLOCK)
        reached = total.to(tl.float64) >= wanted
        low = tl.where(reached, middle, low)
        high = tl.where(reached, high, middle - 1)
    return value_of_key(low)


@triton.jit
def _reaching(source, temperature, highest, cut, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """How many scores of the row reach the cut, or their mass, int64."""
    total = tl.full((), 0, tl.int64)
    vocabulary = source[1]
    for start in range(0, vocabulary, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        values = load_block(source, start, BLOCK)
        scores = over_temperature(values, temperature)
        reaches = (scores >= cut) & (columns < vocabulary)
        if BY_MASS:
            total += tl.sum(tl.where(reaches, mass_of(scores - highest), 0), 0)
        else:
            total += tl.sum(reaches.to(tl.int32), 0).to(tl.int64)
    return total


@triton.jit(do_not_specialize=["blocks"])
def finish(
    logits, stride, vocabulary, rows, bits, words,
    temperatures, noises, keys, positions, choices,
    limits, counters, sums, out,
    blocks, BLOCK: tl.constexpr, EARLY: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Draws the rows whose cut is known; a row's last program stores the token."""
    begin(EARLY)
    row = row_of(rows, tl.program_id(1))
    source = source_of(logits, stride, vocabulary, row, bits, words, tl.program_id(1))
    if tl.load(counters + row * 4) == DRAW:
        _, _, highest, token = noisy_best(
            source, tl.program_id(0) * (blocks * BLOCK),
            tl.load(temperatures + row), tl.load(noises + row), tl.load(keys + row),
            tl.load(positions + row), tl.load(choices + row), tl.load(limits + row * 3 + 2),
            blocks, BLOCK, True, NATIVE,
        )  # fmt: skip
        # One integer whose maximum is the best score's lowest id; -0 equals +0.
        order = order_key(tl.where(highest == 0.0, 0.0, highest)).to(tl.int64)
        packed = ((order + 0x80000000) << 31) | (0x7FFFFFFF - token)
        tl.atomic_max(sums + row * 2 + 1, packed)
        if is_last(counters + row * 4 + 3):
            best = tl.atomic_max(sums + row * 2 + 1, tl.full((), -1, tl.int64))
            tl.store(out + row, (0x7FFFFFFF - (best & 0x7FFFFFFF)).to(tl.int32))
