"""The draw in Triton: five launches, whose work each row chooses on the device.

1. ``_scan`` reads the logits once. An unfiltered row is decided by it: the best score of each
   chunk, with noise. A filtered row leaves the maximum of every 64 logits.
2. ``_bound`` (a program per row) finds the row's maximum, faults, the token of an unfiltered
   row, and for a filtered row a lower bound of its cut: the k-th largest of n group maxima is
   at most the k-th largest logit.
3. ``_collect`` gathers the logits that reach the bound, in any order, and the row's mass
   where top_p alone needs it.
4. ``_decide`` compares all candidates in pairs: how many, and how much mass, lie above each.
   Both filters are conditions on these two, ties included, without a sort. Rows with more
   candidates than fit, or a nucleus larger than them, bisect the cut over all keys.
5. ``_finish`` draws the rows whose cut was bisected.

Masses are integers, so no order of summation can move a cut.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from antiphon_kernels.sample import CANDIDATES, GROUP, RowSettings, Workspace
from antiphon_kernels.sample.arithmetic import (
    LOWEST_KEY,
    mass_of,
    noise_of_block,
    noise_of_ids,
    order_key,
    value_of_key,
)
from antiphon_kernels.sample.search import cut_of_row

_DONE = tl.constexpr(0)
_CANDIDATES = tl.constexpr(1)
_SEARCH = tl.constexpr(2)
_BOUND_COUNT = tl.constexpr(512)
"""The largest top_k that is served from candidates, and how many bound a top_p without one."""


@triton.jit
def _by_count(top_k, vocabulary):
    return (top_k > 0) & (top_k < vocabulary)


@triton.jit
def _is_filtered(noise, top_k, top_p, log_min_p, vocabulary):
    """Whether a row must find a cut: the best score of a row without noise survives any."""
    cuts = _by_count(top_k, vocabulary) | (top_p < 1.0) | (log_min_p > float("-inf"))
    return (noise != 0.0) & cuts


@triton.jit
def _row(logits, stride, row, columns, vocabulary):
    start = logits + row.to(tl.int64) * stride
    return tl.load(start + columns, mask=columns < vocabulary, other=float("-inf")).to(tl.float32)


@triton.jit
def _over_temperature(values, temperature):
    """IEEE quotients; those by 1 are the values themselves."""
    if temperature != 1.0:
        values = tl.math.div_rn(values, temperature)
    return values


@triton.jit
def _best(scores, columns):
    """(largest score, lowest column that has it)."""
    highest = tl.max(scores, 0)
    return highest, tl.min(tl.where(scores == highest, columns, 0x7FFFFFFF), 0)


@triton.jit
def _scan(
    logits, stride, vocabulary,
    temperatures, noises, top_ks, top_ps, log_min_ps, keys, positions, choices,
    chunk_best, chunk_token, chunk_stride, group_best, groups,
    BLOCK: tl.constexpr, GROUP_SIZE: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    row = tl.program_id(1)
    columns = chunk * BLOCK + tl.arange(0, BLOCK)
    values = _row(logits, stride, row, columns, vocabulary)
    nan = values != values
    values = tl.where(nan, float("-inf"), values)
    at = row * 2 * chunk_stride + chunk
    tl.store(chunk_best + at, tl.max(values, 0))
    tl.store(chunk_token + at, tl.max(nan.to(tl.int32), 0))
    noise = tl.load(noises + row)
    filtered = _is_filtered(
        noise, tl.load(top_ks + row), tl.load(top_ps + row), tl.load(log_min_ps + row), vocabulary
    )
    if filtered:
        maxima = tl.max(tl.reshape(values, [BLOCK // GROUP_SIZE, GROUP_SIZE]), 1)
        places = chunk * (BLOCK // GROUP_SIZE) + tl.arange(0, BLOCK // GROUP_SIZE)
        tl.store(group_best + row * groups + places, maxima, mask=places < groups)
    else:
        scores = _over_temperature(values, tl.load(temperatures + row))
        if noise != 0.0:
            drawn = noise_of_block(
                chunk * BLOCK, tl.load(keys + row), tl.load(positions + row),
                tl.load(choices + row), BLOCK,
            )  # fmt: skip
            scores = scores + noise * drawn
        highest, token = _best(scores, columns)
        tl.store(chunk_best + at + chunk_stride, highest)
        tl.store(chunk_token + at + chunk_stride, token)


@triton.jit
def _lower_bound(group_best, groups, wanted, GROUPS: tl.constexpr):
    """A value that at least ``wanted`` logits reach: bisected to 16 bits of the order key."""
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


@triton.jit
def _bound(
    vocabulary, temperatures, noises, top_ks, top_ps, log_min_ps,
    chunk_best, chunk_token, chunk_stride, chunks, group_best, groups,
    limits, counters, sums, out, faults,
    CHUNKS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    places = tl.arange(0, CHUNKS)
    used = places < chunks
    at = row * 2 * chunk_stride + places
    temperature = tl.load(temperatures + row)
    highest = tl.max(tl.load(chunk_best + at, mask=used, other=float("-inf")), 0)
    # Rounding keeps the order, so that this is the largest quotient.
    highest = tl.math.div_rn(highest, temperature)
    nan = tl.max(tl.load(chunk_token + at, mask=used, other=0), 0)
    fault = tl.where(highest == float("-inf"), 2, tl.where(highest == float("inf"), 3, 0))
    fault = tl.where(nan != 0, 1, fault)
    top_k = tl.load(top_ks + row)
    top_p = tl.load(top_ps + row)
    log_min_p = tl.load(log_min_ps + row)
    filtered = _is_filtered(tl.load(noises + row), top_k, top_p, log_min_p, vocabulary)
    tl.store(faults + row, fault)
    tl.store(limits + row * 3, highest)
    tl.store(counters + row * 4 + 1, 0)
    tl.store(counters + row * 4 + 2, 0)
    tl.store(sums + row * 2, tl.full((), 0, tl.int64))
    tl.store(sums + row * 2 + 1, tl.full((), -1, tl.int64))
    phase = tl.full((), _DONE, tl.int32)
    if fault != 0:
        tl.store(out + row, 0)
    elif filtered:
        phase = tl.full((), _CANDIDATES, tl.int32)
        counted = _by_count(top_k, vocabulary)
        bound = _below((highest + log_min_p) * temperature)
        if counted | (top_p < 1.0):
            wanted = tl.where(counted, top_k, _BOUND_COUNT)
            reached = _lower_bound(group_best + row * groups, groups, wanted, GROUPS)
            # top_p counts mass below min_p's cut, so that cut bounds nothing beside top_p.
            bound = tl.where(top_p < 1.0, _below(reached), tl.maximum(_below(reached), bound))
            phase = tl.where(wanted > _BOUND_COUNT, _SEARCH, _CANDIDATES)
        tl.store(limits + row * 3 + 1, bound)
    else:
        noisy = tl.load(chunk_best + at + chunk_stride, mask=used, other=float("-inf"))
        tokens = tl.load(chunk_token + at + chunk_stride, mask=used, other=0x7FFFFFFF)
        _, token = _best(noisy, tokens)
        tl.store(out + row, token)
    tl.store(counters + row * 4, phase)


@triton.jit
def _collect(
    logits, stride, vocabulary, temperatures, top_ks, top_ps,
    candidates, candidate_ids, limits, counters, sums,
    BLOCK: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    row = tl.program_id(1)
    if tl.load(counters + row * 4) == _CANDIDATES:
        columns = chunk * BLOCK + tl.arange(0, BLOCK)
        values = _row(logits, stride, row, columns, vocabulary)
        reaches = (values >= tl.load(limits + row * 3 + 1)) & (columns < vocabulary)
        flags = reaches.to(tl.int32)
        found = tl.sum(flags, 0)
        if found > 0:
            start = tl.atomic_add(counters + row * 4 + 1, found)
            places = start + tl.cumsum(flags, 0) - 1
            kept = reaches & (places < KEPT)
            tl.store(candidates + row * KEPT + places, values, mask=kept)
            tl.store(candidate_ids + row * KEPT + places, columns, mask=kept)
        if (tl.load(top_ps + row) < 1.0) & (_by_count(tl.load(top_ks + row), vocabulary) == 0):
            scores = _over_temperature(values, tl.load(temperatures + row))
            masses = mass_of(scores - tl.load(limits + row * 3))
            tl.atomic_add(sums + row * 2, tl.sum(masses, 0))


@triton.jit
def _above(candidates, scores, found, temperature, highest, KEPT: tl.constexpr, STEP: tl.constexpr):
    """How many candidates exceed each of ``scores`` (KEPT), int32, and their mass, int64."""
    count = tl.zeros([KEPT], tl.int32)
    mass = tl.zeros([KEPT], tl.int64)
    for start in range(0, found, STEP):
        places = start + tl.arange(0, STEP)
        others = tl.load(candidates + places, mask=places < found, other=float("-inf"))
        others = tl.math.div_rn(others, temperature)
        masses = mass_of(others - highest)
        larger = others[None, :] > scores[:, None]
        count += tl.sum(larger.to(tl.int32), 1)
        mass += tl.sum(tl.where(larger, masses[None, :], 0), 1)
    return count, mass


@triton.jit
def _draw_candidates(
    candidates, candidate_ids, found, highest, row_mass, vocabulary, temperature,
    noise, top_k, top_p, log_min_p, key, position, choice, out,
    KEPT: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Draws among the candidates; returns _SEARCH when they do not hold the nucleus."""
    places = tl.arange(0, KEPT)
    valid = places < found
    scores = tl.load(candidates + places, mask=valid, other=float("-inf"))
    scores = tl.math.div_rn(scores, temperature)
    ids = tl.load(candidate_ids + places, mask=valid, other=0)
    more, mass_above = _above(candidates, scores, found, temperature, highest, KEPT, STEP)
    counted = _by_count(top_k, vocabulary)
    survives = valid & (more < tl.where(counted, top_k, vocabulary))
    mass = tl.sum(tl.where(survives, mass_of(scores - highest), 0), 0)
    share = top_p * tl.where(counted, mass, row_mass).to(tl.float64)
    share = tl.where(top_p < 1.0, share, float("inf"))
    nucleus = (mass_above.to(tl.float64) < share) | (scores == highest)
    kept = survives & nucleus & (scores >= highest + log_min_p)
    drawn = noise_of_ids(ids, key, position, choice)
    _, token = _best(tl.where(kept, scores + noise * drawn, float("-inf")), ids)
    complete = (top_p >= 1.0) | (mass.to(tl.float64) >= share)
    if complete:
        tl.store(out, token)
    return tl.where(complete, _DONE, _SEARCH)


@triton.jit
def _decide(
    logits, stride, vocabulary,
    temperatures, noises, top_ks, top_ps, log_min_ps, keys, positions, choices,
    candidates, candidate_ids, limits, counters, sums, out,
    KEPT: tl.constexpr, FEW: tl.constexpr, STEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    phase = tl.load(counters + row * 4)
    if phase != _DONE:
        found = tl.load(counters + row * 4 + 1)
        highest = tl.load(limits + row * 3)
        top_k = tl.load(top_ks + row)
        top_p = tl.load(top_ps + row)
        log_min_p = tl.load(log_min_ps + row)
        temperature = tl.load(temperatures + row)
        if (phase == _CANDIDATES) & (found <= FEW):
            phase = _draw_candidates(
                candidates + row * KEPT, candidate_ids + row * KEPT, found, highest,
                tl.load(sums + row * 2), vocabulary, temperature, tl.load(noises + row),
                top_k, top_p, log_min_p, tl.load(keys + row), tl.load(positions + row),
                tl.load(choices + row), out + row, FEW, STEP,
            )  # fmt: skip
        elif (phase == _CANDIDATES) & (found <= KEPT):
            phase = _draw_candidates(
                candidates + row * KEPT, candidate_ids + row * KEPT, found, highest,
                tl.load(sums + row * 2), vocabulary, temperature, tl.load(noises + row),
                top_k, top_p, log_min_p, tl.load(keys + row), tl.load(positions + row),
                tl.load(choices + row), out + row, KEPT, STEP,
            )  # fmt: skip
        else:
            phase = tl.full((), _SEARCH, tl.int32)
        if phase == _SEARCH:
            cut = cut_of_row(
                logits + row.to(tl.int64) * stride, vocabulary, temperature,
                highest, top_k, top_p, log_min_p, BLOCK,
            )  # fmt: skip
            tl.store(limits + row * 3 + 2, cut)
        tl.store(counters + row * 4, phase)


@triton.jit
def _finish(
    logits, stride, vocabulary, temperatures, noises, keys, positions, choices,
    limits, counters, sums, out, BLOCK: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    row = tl.program_id(1)
    if tl.load(counters + row * 4) == _SEARCH:
        columns = chunk * BLOCK + tl.arange(0, BLOCK)
        values = _row(logits, stride, row, columns, vocabulary)
        scores = _over_temperature(values, tl.load(temperatures + row))
        kept = scores >= tl.load(limits + row * 3 + 2)
        if tl.max(kept.to(tl.int32), 0) > 0:
            drawn = noise_of_block(
                chunk * BLOCK, tl.load(keys + row), tl.load(positions + row),
                tl.load(choices + row), BLOCK,
            )  # fmt: skip
            noisy = tl.where(kept, scores + tl.load(noises + row) * drawn, float("-inf"))
            highest, token = _best(noisy, columns)
            # One integer whose maximum is the best score's lowest id; -0 equals +0.
            order = order_key(tl.where(highest == 0.0, 0.0, highest)).to(tl.int64)
            packed = ((order + 0x80000000) << 31) | (0x7FFFFFFF - token)
            tl.atomic_max(sums + row * 2 + 1, packed)
        arrived = tl.atomic_add(counters + row * 4 + 2, 1)
        if arrived == tl.num_programs(0) - 1:
            best = tl.atomic_max(sums + row * 2 + 1, tl.full((), -1, tl.int64))
            tl.store(out + row, (0x7FFFFFFF - (best & 0x7FFFFFFF)).to(tl.int32))


def sample(
    logits: torch.Tensor,
    settings: RowSettings,
    out: torch.Tensor,
    faults: torch.Tensor,
    workspace: Workspace,
) -> None:
    """As :func:`antiphon_kernels.sample.sample`, on tensors of one device."""
    rows, vocabulary = logits.shape
    if logits.stride(1) != 1 or vocabulary != workspace.vocabulary:
        raise ValueError("sample: logits need contiguous rows of the workspace's vocabulary")
    if rows > min(workspace.rows, settings.temperature.shape[0]):
        raise ValueError(f"sample: {rows} rows exceed the workspace or the settings")
    # Larger chunks where rows alone fill the device; they change no result.
    block = 1024 if rows <= 2 else 2048 if rows <= 8 else 4096
    chunks = triton.cdiv(vocabulary, block)
    groups = workspace.group_best.shape[1]
    chunk_best, chunk_token = workspace.chunk_best, workspace.chunk_token
    s, w = settings, workspace
    source = (logits, logits.stride(0), vocabulary)
    draw = (s.key, s.position, s.choice)
    state = (w.limits, w.counters, w.sums)
    grid = (chunks, rows)
    warps = block // 512
    _scan[grid](
        *source, s.temperature, s.noise, s.top_k, s.top_p, s.log_min_p, *draw,
        chunk_best, chunk_token, chunk_best.shape[2], w.group_best, groups,
        BLOCK=block, GROUP_SIZE=GROUP, num_warps=warps,
    )  # fmt: skip
    _bound[(rows,)](
        vocabulary, s.temperature, s.noise, s.top_k, s.top_p, s.log_min_p,
        chunk_best, chunk_token, chunk_best.shape[2], chunks, w.group_best, groups,
        *state, out, faults,
        CHUNKS=triton.next_power_of_2(chunks), GROUPS=triton.next_power_of_2(groups),
        num_warps=8,
    )  # fmt: skip
    _collect[grid](
        *source, s.temperature, s.top_k, s.top_p, w.candidates, w.candidate_ids, *state,
        BLOCK=block, KEPT=CANDIDATES, num_warps=warps,
    )  # fmt: skip
    _decide[(rows,)](
        *source, s.temperature, s.noise, s.top_k, s.top_p, s.log_min_p, *draw,
        w.candidates, w.candidate_ids, *state, out,
        KEPT=CANDIDATES, FEW=128, STEP=16, BLOCK=8192, num_warps=16,
    )  # fmt: skip
    _finish[grid](*source, s.temperature, s.noise, *draw, *state, out, BLOCK=block, num_warps=warps)
