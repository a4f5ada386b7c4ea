"""Second and third stage: the few logits that reach a row's bound, and the draw among them."""

from __future__ import annotations

import triton
import triton.language as tl

from antiphon_kernels.sample.arithmetic import (
    mass_of,
    noise_of_ids,
    order_key,
    value_of_key,
)
from antiphon_kernels.sample.rows import (
    COLLECT,
    DONE,
    DRAW,
    SEARCH,
    begin,
    best_of,
    is_counted,
    load_ahead,
    load_block,
    over_temperature,
    row_of,
    source_of,
)


@triton.jit(do_not_specialize=["blocks"])
def collect(
    logits, stride, vocabulary, rows, bits, words, temperatures, top_ks, top_ps,
    candidates, candidate_ids, limits, counters, sums,
    blocks, BLOCK: tl.constexpr, KEPT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Gathers candidates in any order, and the row's mass where top_p alone cuts."""
    begin(EARLY)
    row = row_of(rows, tl.program_id(1))
    source = source_of(logits, stride, vocabulary, row, bits, words, tl.program_id(1))
    if tl.load(counters + row * 4) == COLLECT:
        bound = tl.load(limits + row * 3 + 1)
        highest = tl.load(limits + row * 3)
        temperature = tl.load(temperatures + row)
        uncounted = is_counted(tl.load(top_ks + row), vocabulary) == 0
        weighed = uncounted & (tl.load(top_ps + row) < 1.0)
        mass = tl.full((), 0, tl.int64)
        first = tl.program_id(0) * (blocks * BLOCK)
        ahead = load_block(source, first, BLOCK)
        for block in range(blocks):
            start = first + block * BLOCK
            columns = start + tl.arange(0, BLOCK)
            values = ahead
            ahead = load_ahead(source, start + BLOCK, block + 1 < blocks, BLOCK)
            # Of a row with fewer finite logits than are wanted those alone are candidates.
            reaches = (values >= bound) & (values > float("-inf"))
            flags = reaches.to(tl.int32)
            found = tl.sum(flags, 0)
            if found > 0:
                places = tl.atomic_add(counters + row * 4 + 1, found)
                places += tl.cumsum(flags, 0) - 1
                kept = reaches & (places < KEPT)
                tl.store(candidates + row * KEPT + places, values, mask=kept)
                tl.store(candidate_ids + row * KEPT + places, columns, mask=kept)
            if weighed:
                scores = over_temperature(values, temperature)
                mass += tl.sum(mass_of(scores - highest), 0)
        if weighed:
            tl.atomic_add(sums + row * 2, mass)


@triton.jit
def largest_cut(scores, valid, highest, base, wanted, BY_MASS: tl.constexpr):
    """The largest of the valid scores that is reached by ``wanted`` or more, fp64.

    What reaches it, with ``base`` (int64) above all scores, is counted or weighed. Where all are
    fewer, the least valid score. Order keys are bisected in registers, so that ties
    stay whole and no order of the scores matters.
    """
    weights = valid.to(tl.int32)
    if BY_MASS:
        weights = tl.where(valid, mass_of(scores - highest), 0)
    low = order_key(tl.min(tl.where(valid, scores, float("inf")), 0))
    high = order_key(tl.max(tl.where(valid, scores, float("-inf")), 0))
    while low < high:
        # The upper middle, in 64 bits: the difference of two keys can exceed 31.
        middle = (low.to(tl.int64) + (high.to(tl.int64) - low.to(tl.int64) + 1) // 2).to(tl.int32)
        reached = tl.sum(tl.where(scores >= value_of_key(middle), weights, 0), 0) + base
        enough = reached.to(tl.float64) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return value_of_key(low)


@triton.jit
def decide(
    vocabulary, rows, temperatures, noises, top_ks, top_ps, log_min_ps, keys, positions, choices,
    candidates, candidate_ids, limits, counters, sums, counts, masses, out,
    KEPT: tl.constexpr, BUCKETS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Draws a row from its candidates; leaves one that needs more than those to the next stages."""
    begin(EARLY)
    row = row_of(rows, tl.program_id(0))
    phase = tl.load(counters + row * 4)
    if phase != DONE:
        highest = tl.load(limits + row * 3)
        top_k = tl.load(top_ks + row)
        top_p = tl.load(top_ps + row)
        lowest = highest + tl.load(log_min_ps + row)
        found = tl.load(counters + row * 4 + 1)
        if (phase == COLLECT) & (found <= KEPT):
            phase = _draw_candidates(
                candidates + row * KEPT, candidate_ids + row * KEPT, found,
                tl.load(temperatures + row), highest, lowest, tl.load(sums + row * 2),
                is_counted(top_k, vocabulary), top_k, top_p, tl.load(noises + row),
                tl.load(keys + row), tl.load(positions + row), tl.load(choices + row),
                out + row, KEPT,
            )  # fmt: skip
        elif is_counted(top_k, vocabulary) | (top_p < 1.0):
            phase = tl.full((), SEARCH, tl.int32)
        else:
            tl.store(limits + row * 3 + 2, lowest)
            phase = tl.full((), DRAW, tl.int32)
        if phase == SEARCH:
            buckets = tl.arange(0, BUCKETS)
            tl.store(counts + row * BUCKETS + buckets, tl.zeros([BUCKETS], tl.int32))
            tl.store(masses + row * BUCKETS + buckets, tl.zeros([BUCKETS], tl.int64))
        tl.store(counters + row * 4, phase)


@triton.jit
def _draw_candidates(
    candidates, candidate_ids, found, temperature, highest, lowest, row_mass,
    counted, top_k, top_p, noise, key, position, choice, out,
    KEPT: tl.constexpr,
):  # fmt: skip
    """Draws among all candidates; returns SEARCH when they do not hold the nucleus."""
    places = tl.arange(0, KEPT)
    valid = places < found
    scores = tl.load(candidates + places, mask=valid, other=float("-inf"))
    scores = tl.math.div_rn(scores, temperature)
    nothing = tl.full((), 0, tl.int64)
    cut = tl.full((), float("-inf"), tl.float32)
    if counted:
        cut = largest_cut(scores, valid, highest, nothing, top_k.to(tl.float64), False)
    phase = tl.full((), DONE, tl.int32)
    if top_p < 1.0:
        survives = valid & (scores >= cut)
        mass = tl.sum(tl.where(survives, mass_of(scores - highest), 0), 0)
        share = top_p * tl.where(counted, mass, row_mass).to(tl.float64)
        if mass.to(tl.float64) >= share:
            cut = largest_cut(scores, survives, highest, nothing, share, True)
        else:
            phase = tl.full((), SEARCH, tl.int32)
    if phase == DONE:
        ids = tl.load(candidate_ids + places, mask=valid, other=0)
        kept = valid & (scores >= tl.maximum(cut, lowest))
        drawn = noise_of_ids(ids, key, position, choice)
        _, token = best_of(tl.where(kept, scores + noise * drawn, float("-inf")), ids)
        tl.store(out, token)
    return phase
