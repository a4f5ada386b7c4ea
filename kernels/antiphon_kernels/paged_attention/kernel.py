# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportAssignmentType=false
# Triton declares neither its CUDA extras nor what a jitted helper returns.
"""Paged attention of decode rows on CUDA: split over the keys, and what prefill shares."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
"""Softmax runs on powers of two: ``exp(x) = exp2(x * LOG2E)``."""

LOWEST = tl.constexpr(-1.0e30)
"""Start of a running maximum: finite, so that rows without a visible key stay free of NaN."""


@triton.jit
def scores(q, keys, cap_scale, SOFTCAP: tl.constexpr):
    """Dot products, or their capped tanh in units of the cap."""
    score = tl.dot(q, keys, input_precision="ieee")
    if SOFTCAP:
        score = 2.0 * tl.sigmoid(2.0 * cap_scale * score) - 1.0
    return score


@triton.jit
def weighted(weights, values, acc):
    """acc + weights @ values, the weights rounded to the values' dtype."""
    return tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")


@triton.jit
def _pages(table, begin, keys_end, BLOCK_TOKENS: tl.constexpr, BLOCK_KEYS: tl.constexpr):
    """The page of each key of a block; 0 beyond the last key."""
    key = begin + tl.arange(0, BLOCK_KEYS)
    return tl.load(table + key // BLOCK_TOKENS, mask=key < keys_end, other=0)


@triton.jit
def _block(
    q, query_position, acc, peak, total, block, begin, keys_end,
    k_head, v_head, table, factor, cap_scale, window,
    SLOT: tl.constexpr, BLOCK_TOKENS: tl.constexpr, DIM: tl.constexpr, BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    """One step of the online softmax over keys [begin, begin + BLOCK_KEYS).

    Weights are ``exp2(score * factor - peak)`` with the running peak in those units. ``block``
    are the pages of these keys; the next step's are read here, one step ahead of the keys that
    they lead to.
    """
    key = begin + tl.arange(0, BLOCK_KEYS)
    column = tl.arange(0, BLOCK_DIM)
    present = key < keys_end
    next_block = _pages(table, begin + BLOCK_KEYS, keys_end, BLOCK_TOKENS, BLOCK_KEYS)
    slot = (block.to(tl.int64) * BLOCK_TOKENS + key % BLOCK_TOKENS) * SLOT
    k_place = k_head + slot[None, :] + column[:, None]
    v_place = v_head + slot[:, None] + column[None, :]
    if DIM != BLOCK_DIM:
        keys = tl.load(k_place, present[None, :] & (column < DIM)[:, None], other=0.0)
        values = tl.load(v_place, present[:, None] & (column < DIM)[None, :], other=0.0)
    else:
        keys = tl.load(k_place, present[None, :], other=0.0)
        values = tl.load(v_place, present[:, None], other=0.0)
    score = scores(q, keys, cap_scale, SOFTCAP)
    # A live query's own position bounds its keys; what a dead one sees is never stored.
    visible = key[None, :] <= query_position[:, None]
    if WINDOW:
        visible = visible & (key[None, :] > query_position[:, None] - window)
    score = tl.where(visible, score, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(score, axis=1) * factor)
    weights = tl.exp2(score * factor - new_peak[:, None])
    decay = tl.exp2(peak - new_peak)
    total = total * decay + tl.sum(weights, axis=1)
    acc = weighted(weights, values, acc * decay[:, None])
    return acc, new_peak, total, next_block


@triton.jit
def finish(acc, peak, total, sink, SINKS: tl.constexpr):
    """Normalised output; a sink adds its weight to the sum and no value."""
    if SINKS:
        sink = sink * LOG2E
        new_peak = tl.maximum(peak, sink)
        decay = tl.exp2(peak - new_peak)
        total = total * decay + tl.exp2(sink - new_peak)
        acc = acc * decay[:, None]
    return acc / tl.where(total > 0.0, total, 1.0)[:, None]


@triton.jit
def _prefetch(
    k_head, v_head, table, begin, end,
    SLOT: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BLOCK_KEYS: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """Asks for the keys and values of one block, LINES of 128 bytes each, into the L2 cache."""
    key = tl.minimum(begin + tl.arange(0, BLOCK_KEYS), end - 1)
    block = tl.load(table + key // BLOCK_TOKENS).to(tl.int64)
    slot = (block * BLOCK_TOKENS + key % BLOCK_TOKENS) * SLOT
    line = tl.arange(0, LINES)[None, :] * 128
    for head in tl.static_range(2):
        place = (k_head if head == 0 else v_head) + slot
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l",
            [place.to(tl.int64)[:, None] + line], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def _part_range(
    context, queries, window, part, splits, BLOCK_KEYS: tl.constexpr, WINDOW: tl.constexpr
):
    """The keys [begin, end) of one part and how many parts this context has."""
    start = 0
    if WINDOW:
        start = tl.maximum(context - queries - window + 1, 0) // BLOCK_KEYS * BLOCK_KEYS
    blocks = tl.cdiv(context - start, BLOCK_KEYS)
    share = tl.cdiv(blocks, splits)
    begin = start + part * share * BLOCK_KEYS
    return begin, tl.minimum(begin + share * BLOCK_KEYS, context), tl.cdiv(blocks, share)


@triton.jit
def _attend(
    q, position, k_head, v_head, table, begin, end, context, factor, cap_scale, window,
    SLOT: tl.constexpr, BLOCK_TOKENS: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, BLOCK_DIM: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The unfinished softmax of TILE queries over keys [begin, end)."""
    acc = tl.zeros([TILE, BLOCK_DIM], dtype=tl.float32)
    peak = tl.full([TILE], LOWEST, dtype=tl.float32)
    total = tl.zeros([TILE], dtype=tl.float32)
    block = _pages(table, begin, context, BLOCK_TOKENS, BLOCK_KEYS)
    for key in tl.range(begin, end, BLOCK_KEYS, num_stages=STAGES):
        acc, peak, total, block = _block(
            q, position, acc, peak, total, block, key, context,
            k_head, v_head, table, factor, cap_scale, window,
            SLOT, BLOCK_TOKENS, DIM, BLOCK_KEYS, BLOCK_DIM, WINDOW, SOFTCAP,
        )  # fmt: skip
    return acc, peak, total


@triton.jit
def _chunk(query_start, context_len, row, chunk, CHUNK: tl.constexpr):
    """(first query, queries, context) of a chunk of a row: as of a row of its own, which ends
    with its last query's key."""
    first = tl.load(query_start + row) + chunk * CHUNK
    queries = tl.load(query_start + row + 1) - first
    context = tl.load(context_len + row) - tl.maximum(queries - CHUNK, 0)
    return first, tl.maximum(tl.minimum(queries, CHUNK), 0), context


@triton.jit(do_not_specialize=["splits"])
def decode(
    q, k_cache, v_cache, out, query_start, context_len, block_table, sinks,
    arrivals, partial_acc, partial_peak, partial_total,
    splits, table_stride, q_stride, head_stride, factor, cap_scale, window,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, LIVE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    EARLY: tl.constexpr, LINES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One part of the context of one (row, key head), for CHUNK of its queries and their heads.

    The pairs (query, head) of the group share every loaded key, so the cache is read once.
    The row's metadata is read before the wait: the kernel right before only makes q and this
    step's keys. Parts beyond a short context have nothing to do; the last of the others to
    arrive joins them all.
    """
    kv_head = tl.program_id(0)
    part = tl.program_id(1)
    piece = tl.program_id(2)
    row = piece // CHUNKS
    GROUP: tl.constexpr = HEADS // KV_HEADS
    first, queries, context = _chunk(query_start, context_len, row, piece % CHUNKS, CHUNK)
    begin, end, parts = _part_range(context, queries, window, part, splits, BLOCK_KEYS, WINDOW)
    pair = tl.arange(0, TILE)
    column = tl.arange(0, BLOCK_DIM)
    query, head = pair // GROUP, kv_head * GROUP + pair % GROUP
    live = query < queries
    q_place = q + (first + query).to(tl.int64)[:, None] * q_stride
    q_place += head[:, None] * head_stride + column[None, :]
    k_head = k_cache + kv_head * DIM
    v_head = v_cache + kv_head * DIM
    table = block_table + row.to(tl.int64) * table_stride
    if LINES > 0:
        _prefetch(
            k_head, v_head, table, begin, end, KV_HEADS * DIM, BLOCK_TOKENS, BLOCK_KEYS, LINES
        )
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if part < parts:
        tile = tl.load(q_place, live[:, None] & (column < DIM)[None, :], other=0.0)
        acc, peak, total = _attend(
            tile, context - queries + query, k_head, v_head, table, begin, end, context,
            factor, cap_scale, window, KV_HEADS * DIM, BLOCK_TOKENS, DIM, TILE, BLOCK_KEYS,
            BLOCK_DIM, WINDOW, SOFTCAP, STAGES,
        )  # fmt: skip
        if parts == 1:
            _store_rows(
                acc, peak, total, out, sinks, first, queries, kv_head,
                HEADS, GROUP, DIM, TILE, BLOCK_DIM, SINKS,
            )  # fmt: skip
        else:
            pairs = piece * KV_HEADS + kv_head
            _store_part(
                acc, peak, total, partial_acc, partial_peak, partial_total,
                pairs * splits + part, live, TILE, LIVE, BLOCK_DIM,
            )  # fmt: skip
            # Every thread's stores come before the arrival that publishes them.
            tl.debug_barrier()
            arrived = tl.atomic_add(arrivals + pairs, 1, sem="acq_rel", scope="gpu")
            if arrived == parts - 1:
                tl.store(arrivals + pairs, 0)
                _join(
                    partial_acc, partial_peak, partial_total, out, sinks, pairs * splits, parts,
                    first, queries, kv_head, HEADS, GROUP, DIM, LIVE, BLOCK_DIM, SINKS,
                )  # fmt: skip


@triton.jit
def _store_part(
    acc, peak, total, partial_acc, partial_peak, partial_total, index, live,
    TILE: tl.constexpr, LIVE: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Leaves one part's unfinished softmax in the workspace, live pairs only."""
    base = index * LIVE + tl.arange(0, TILE)
    column = tl.arange(0, BLOCK_DIM)[None, :]
    place = base.to(tl.int64)[:, None] * BLOCK_DIM + column
    tl.store(partial_acc + place, acc, live[:, None] & (column < BLOCK_DIM))
    tl.store(partial_peak + base, peak, live)
    tl.store(partial_total + base, total, live)


@triton.jit
def _store_rows(
    acc, peak, total, out, sinks, first, queries, kv_head,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Normalises ROWS pairs (query, head) of a key head and stores the live ones."""
    pair = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK_DIM)
    query = pair // GROUP
    head = kv_head * GROUP + pair % GROUP
    live = query < queries
    sink = tl.zeros([ROWS], dtype=tl.float32)
    if SINKS:
        sink = tl.load(sinks + head, mask=live, other=0.0).to(tl.float32)
    result = finish(acc, peak, total, sink, SINKS)
    at = (first + query).to(tl.int64)
    place = out + (at * HEADS + head)[:, None] * DIM + column[None, :]
    mask = live[:, None] & (column < DIM)[None, :]
    tl.store(place, result.to(out.dtype.element_ty), mask)


@triton.jit
def _join(
    partial_acc, partial_peak, partial_total, out, sinks, origin, parts, first, queries, kv_head,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, LIVE: tl.constexpr,
    BLOCK_DIM: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Joins the parts in their order, so that the result does not depend on who came last.

    Several parts are read at once: one by one, each would wait for its own trip to the L2.
    """
    AT_ONCE: tl.constexpr = 8192 // (LIVE * BLOCK_DIM) if LIVE * BLOCK_DIM < 8192 else 1
    pair = tl.arange(0, LIVE)
    column = tl.arange(0, BLOCK_DIM)
    live = pair // GROUP < queries
    acc = tl.zeros([LIVE, BLOCK_DIM], dtype=tl.float32)
    peak = tl.full([LIVE], LOWEST, dtype=tl.float32)
    total = tl.zeros([LIVE], dtype=tl.float32)
    for begin in range(0, parts, AT_ONCE):
        part = begin + tl.arange(0, AT_ONCE)
        base = (origin + part)[:, None] * LIVE + pair[None, :]
        inside = (part < parts)[:, None] & live[None, :]
        peaks = tl.load(partial_peak + base, inside, other=LOWEST, cache_modifier=".cg")
        totals = tl.load(partial_total + base, inside, other=0.0, cache_modifier=".cg")
        place = base.to(tl.int64)[:, :, None] * BLOCK_DIM + column[None, None, :]
        mask = inside[:, :, None] & (column < BLOCK_DIM)[None, None, :]
        accs = tl.load(partial_acc + place, mask, other=0.0, cache_modifier=".cg")
        new_peak = tl.maximum(peak, tl.max(peaks, axis=0))
        decay = tl.exp2(peak - new_peak)
        weights = tl.exp2(peaks - new_peak[None, :])
        total = total * decay + tl.sum(totals * weights, axis=0)
        acc = acc * decay[:, None] + tl.sum(accs * weights[:, :, None], axis=0)
        peak = new_peak
    _store_rows(
        acc, peak, total, out, sinks, first, queries, kv_head,
        HEADS, GROUP, DIM, LIVE, BLOCK_DIM, SINKS,
    )  # fmt: skip
