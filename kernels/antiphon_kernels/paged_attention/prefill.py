# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
# Triton does not declare what a jitted helper returns.
"""Paged attention of prefill rows on CUDA: a program takes a tile of one head's queries.

FlashAttention-2's loop (Dao 2023). Such a program fills a multiprocessor nearly alone, so that
whatever it does besides products is time without one: keys are read as the values are, which
shares their addresses and page ids, and one loop takes all blocks, so that the diagonal finds
its keys in flight.
"""

from __future__ import annotations

import triton
import triton.language as tl

from antiphon_kernels.paged_attention.kernel import LOWEST, finish, scores, weighted
from antiphon_kernels.paged_attention.tiles import find_tile, key_ranges


@triton.jit
def _pages(table, begin, context, BLOCK_TOKENS: tl.constexpr, BLOCK_KEYS: tl.constexpr):
    """The page of each key of a block that begins at a multiple of BLOCK_KEYS; 0 beyond."""
    key = tl.arange(0, BLOCK_KEYS)
    if BLOCK_TOKENS <= BLOCK_KEYS:
        place = table + begin // BLOCK_TOKENS + key // BLOCK_TOKENS
    else:
        place = table + (begin + key) // BLOCK_TOKENS
    return tl.load(place, mask=begin + key < context, other=0)


@triton.jit
def _read(
    head, pages, begin, context,
    SLOT: tl.constexpr, BLOCK_TOKENS: tl.constexpr, DIM: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, BLOCK_DIM: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """(BLOCK_KEYS, BLOCK_DIM) keys or values; with MASK those beyond the context are zero."""
    key = tl.arange(0, BLOCK_KEYS)
    column = tl.arange(0, BLOCK_DIM)
    if BLOCK_TOKENS <= BLOCK_KEYS:
        within = key % BLOCK_TOKENS * SLOT
    else:
        within = (begin + key) % BLOCK_TOKENS * SLOT
    place = head + pages.to(tl.int64)[:, None] * (BLOCK_TOKENS * SLOT)
    place += within[:, None] + column[None, :]
    if DIM != BLOCK_DIM:
        present = (begin + key < context)[:, None] & (column < DIM)[None, :]
        return tl.load(place, present, other=0.0)
    if MASK:
        return tl.load(place, (begin + key < context)[:, None], other=0.0)
    return tl.load(place)


@triton.jit
def _softmax(
    score, position, begin, full_begin, full_end, window, peak, total, factor, WINDOW: tl.constexpr
):
    """Weights of a block's scores, the new peak and sum, and the decay of what came before.

    Only a block outside [full_begin, full_end) needs a mask. That is asked here and not by
    loops of their own over such blocks, which would begin with nothing in flight.
    """
    masked = begin >= full_end
    if WINDOW:
        masked = masked | (begin < full_begin)
    if masked:
        key = begin + tl.arange(0, score.shape[1])
        # A live query's own position bounds its keys; what a dead one sees is never stored.
        visible = key[None, :] <= position[:, None]
        if WINDOW:
            visible = visible & (key[None, :] > position[:, None] - window)
        score = tl.where(visible, score, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(score, axis=1) * factor)
    weights = tl.exp2(score * factor - new_peak[:, None])
    decay = tl.exp2(peak - new_peak)
    return weights, new_peak, total * decay + tl.sum(weights, axis=1), decay


@triton.jit
def _attend(
    q, position, begin, full_begin, full_end, end, context, window, k_head, v_head, table,
    factor, cap_scale,
    SLOT: tl.constexpr, BLOCK_TOKENS: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, BLOCK_DIM: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The unfinished softmax of TILE queries over keys [begin, end)."""
    acc = tl.zeros([TILE, BLOCK_DIM], dtype=tl.float32)
    peak = tl.full([TILE], LOWEST, dtype=tl.float32)
    total = tl.zeros([TILE], dtype=tl.float32)
    pages = _pages(table, begin, context, BLOCK_TOKENS, BLOCK_KEYS)
    for key in tl.range(begin, end, BLOCK_KEYS, num_stages=STAGES):
        keys = _read(
            k_head, pages, key, context, SLOT, BLOCK_TOKENS, DIM, BLOCK_KEYS, BLOCK_DIM, False
        )
        values = _read(
            v_head, pages, key, context, SLOT, BLOCK_TOKENS, DIM, BLOCK_KEYS, BLOCK_DIM, True
        )
        pages = _pages(table, key + BLOCK_KEYS, context, BLOCK_TOKENS, BLOCK_KEYS)
        score = scores(q, tl.trans(keys), cap_scale, SOFTCAP)
        weights, peak, total, decay = _softmax(
            score, position, key, full_begin, full_end, window, peak, total, factor, WINDOW
        )
        acc = weighted(weights, values, acc * decay[:, None])
    return acc, peak, total


@triton.jit(do_not_specialize=["rows"])
def prefill(
    q, k_cache, v_cache, out, query_start, context_len, block_table, sinks,
    rows, table_stride, q_stride, head_stride, factor, cap_scale, window,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr, BLOCK_KEYS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    SEARCH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """TILE queries of one head of one row."""
    head = tl.program_id(0)
    row, offset = find_tile(query_start, tl.program_id(1), rows, TILE, SEARCH)
    if row >= 0:
        first = tl.load(query_start + row)
        queries = tl.load(query_start + row + 1) - first
        context = tl.load(context_len + row)
        kv_head = head // (HEADS // KV_HEADS)
        query = offset + tl.arange(0, TILE)
        column = tl.arange(0, BLOCK_DIM)
        inside = (query < queries)[:, None] & (column < DIM)[None, :]
        position = context - queries + query
        at = (first + query).to(tl.int64)
        q_place = q + at[:, None] * q_stride + head * head_stride + column[None, :]
        tile = tl.load(q_place, inside, other=0.0)
        begin, full_begin, full_end, end = key_ranges(
            context - queries + offset, context, window, TILE, BLOCK_KEYS, WINDOW
        )
        table = block_table + row.to(tl.int64) * table_stride
        k_head = k_cache + kv_head * DIM
        v_head = v_cache + kv_head * DIM
        acc, peak, total = _attend(
            tile, position, begin, full_begin, full_end, end, context, window,
            k_head, v_head, table, factor, cap_scale,
            KV_HEADS * DIM, BLOCK_TOKENS, DIM, TILE, BLOCK_KEYS, BLOCK_DIM,
            WINDOW, SOFTCAP, STAGES,
        )  # fmt: skip
        sink = tl.zeros([TILE], dtype=tl.float32)
        if SINKS:
            sink += tl.load(sinks + head).to(tl.float32)
        result = finish(acc, peak, total, sink, SINKS)
        # Read again, so that the places in out take no registers while the loops run.
        first = tl.load(query_start + row, volatile=True)
        queries = tl.load(query_start + row + 1, volatile=True) - first
        inside = (query < queries)[:, None] & (column < DIM)[None, :]
        at = (first + query).to(tl.int64)
        o_place = out + (at * HEADS + head)[:, None] * DIM + column[None, :]
        tl.store(o_place, result.to(out.dtype.element_ty), inside)
