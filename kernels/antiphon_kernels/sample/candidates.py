"""Second and third stage: the few logits that reach a row's bound, and the draw among them."""

from __future__ import annotations

import triton
import triton.language as tl

from antiphon_kernels.sample.arithmetic import mass_of, noise_of_ids
from antiphon_kernels.sample.rows import (
    COLLECT,
    DONE,
    DRAW,
    SEARCH,
    begin,
    best_of,
    is_counted,
    load_ahead,
    load_logits,
    over_temperature,
)


@triton.jit(do_not_specialize=["blocks"])
def collect(
    logits, stride, vocabulary, temperatures, top_ks, top_ps,
    candidates, candidate_ids, limits, counters, sums,
    blocks, BLOCK: tl.constexpr, KEPT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Gathers candidates in any order, and the row's mass where top_p alone cuts."""
    begin(EARLY)
    row = tl.program_id(1)
    if tl.load(counters + row * 4) == COLLECT:
        bound = tl.load(limits + row * 3 + 1)
        highest = tl.load(limits + row * 3)
        temperature = tl.load(temperatures + row)
        uncounted = is_counted(tl.load(top_ks + row), vocabulary) == 0
        weighed = uncounted & (tl.load(top_ps + row) < 1.0)
        mass = tl.full((), 0, tl.int64)
        offsets = tl.program_id(0) * (blocks * BLOCK) + tl.arange(0, BLOCK)
        ahead = load_logits(logits, stride, row, offsets, vocabulary)
        for block in range(blocks):
            columns = offsets + block * BLOCK
            values = ahead
            ahead = load_ahead(logits, stride, row, columns + BLOCK, vocabulary, block + 1 < blocks)
            reaches = (values >= bound) & (columns < vocabulary)
            flags = reaches.to(tl.int32)
            found = tl.sum(flags, 0)
            if found > 0:
                start = tl.atomic_add(counters + row * 4 + 1, found)
                places = start + tl.cumsum(flags, 0) - 1
                kept = reaches & (places < KEPT)
                tl.store(candidates + row * KEPT + places, values, mask=kept)
                tl.store(candidate_ids + row * KEPT + places, columns, mask=kept)
            if weighed:
                scores = over_temperature(values, temperature)
                mass += tl.sum(mass_of(scores - highest), 0)
        if weighed:
            tl.atomic_add(sums + row * 2, mass)


@triton.jit
def least_kept(
    values, found, temperature, highest, base, wanted,
    BY_MASS: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The least quotient that is kept: ``base`` and all that exceed it are below ``wanted``.

    What exceeds it is counted, or its mass is summed, over all pairs; so ties are kept or
    cut together and no order of the values matters. inf when none is kept.

    Args:
        values: fp32, ``found`` of them, divided by ``temperature`` here.
        base: int64, count or mass above all values; ``wanted``: fp64.
    """
    cut = tl.full((), float("inf"), tl.float32)
    for first in range(0, found, TILE):
        places = first + tl.arange(0, TILE)
        mine = tl.load(values + places, mask=places < found, other=float("-inf"))
        mine = tl.math.div_rn(mine, temperature)
        above = tl.zeros([TILE], tl.int64)
        for start in range(0, found, STEP):
            others_at = start + tl.arange(0, STEP)
            others = tl.load(values + others_at, mask=others_at < found, other=float("-inf"))
            others = tl.math.div_rn(others, temperature)
            larger = others[None, :] > mine[:, None]
            if BY_MASS:
                masses = mass_of(others - highest)
                above += tl.sum(tl.where(larger, masses[None, :], 0), 1)
            else:
                above += tl.sum(larger.to(tl.int32), 1).to(tl.int64)
        kept = (places < found) & ((above + base).to(tl.float64) < wanted)
        cut = tl.minimum(cut, tl.min(tl.where(kept, mine, float("inf")), 0))
    return cut


@triton.jit
def decide(
    vocabulary, temperatures, noises, top_ks, top_ps, log_min_ps, keys, positions, choices,
    candidates, candidate_ids, limits, counters, sums, counts, masses, out,
    KEPT: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr, BUCKETS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Draws a row from its candidates; leaves one that needs more than those to the next stages."""
    begin(EARLY)
    row = tl.program_id(0)
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
                out + row, KEPT, TILE, STEP,
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
    KEPT: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Draws among all candidates; returns SEARCH when they do not hold the nucleus."""
    places = tl.arange(0, KEPT)
    valid = places < found
    scores = tl.load(candidates + places, mask=valid, other=float("-inf"))
    scores = tl.math.div_rn(scores, temperature)
    nothing = tl.full((), 0, tl.int64)
    cut = tl.full((), float("-inf"), tl.float32)
    if counted:
        cut = least_kept(
            candidates, found, temperature, highest, nothing, top_k.to(tl.float64),
            False, TILE, STEP,
        )  # fmt: skip
    phase = tl.full((), DONE, tl.int32)
    if top_p < 1.0:
        mass = tl.sum(tl.where(valid & (scores >= cut), mass_of(scores - highest), 0), 0)
        share = top_p * tl.where(counted, mass, row_mass).to(tl.float64)
        if mass.to(tl.float64) >= share:
            nucleus = least_kept(
                candidates, found, temperature, highest, nothing, share, True, TILE, STEP
            )
            cut = tl.maximum(cut, tl.minimum(nucleus, highest))
        else:
            phase = tl.full((), SEARCH, tl.int32)
    if phase == DONE:
        ids = tl.load(candidate_ids + places, mask=valid, other=0)
        kept = valid & (scores >= tl.maximum(cut, lowest))
        drawn = noise_of_ids(ids, key, position, choice)
        _, token = best_of(tl.where(kept, scores + noise * drawn, float("-inf")), ids)
        tl.store(out, token)
    return phase
