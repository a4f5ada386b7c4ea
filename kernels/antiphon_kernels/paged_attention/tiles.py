"""Which queries and keys a program of the prefill kernel works on: read on the device."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile_counts(query_start, begin, rows, TILE: tl.constexpr, SEARCH: tl.constexpr):
    """Tiles of each of SEARCH rows from ``begin`` on; none beyond the last row."""
    row = begin + tl.arange(0, SEARCH)
    inside = row < rows
    first = tl.load(query_start + row, mask=inside, other=0)
    last = tl.load(query_start + row + 1, mask=inside, other=0)
    return tl.cdiv(last - first, TILE)


@triton.jit
def find_tile(query_start, program, rows, TILE: tl.constexpr, SEARCH: tl.constexpr):
    """Row and first query of a program's tile, counted from the last; a row of -1 for no tile.

    Every program finds its own without a table from the host. The last tiles of a row see the
    most keys, so they start first, and programs without a tile come after all others.
    """
    tile = -1 - program
    for begin in range(0, rows, SEARCH):
        tile += tl.sum(_tile_counts(query_start, begin, rows, TILE, SEARCH), axis=0)
    before = 0
    found = 0
    row_tile = 0
    for begin in range(0, rows, SEARCH):
        counts = _tile_counts(query_start, begin, rows, TILE, SEARCH)
        ends = before + tl.cumsum(counts, axis=0)
        passed = (ends <= tile) & (begin + tl.arange(0, SEARCH) < rows)
        found += tl.sum(passed.to(tl.int32), axis=0)
        row_tile = tl.maximum(row_tile, tl.max(tl.where(passed, ends, 0), axis=0))
        before += tl.sum(counts, axis=0)
    return tl.where(tile < 0, -1, found), (tile - row_tile) * TILE


@triton.jit
def key_ranges(
    lowest, context, window,
    TILE: tl.constexpr, BLOCK_KEYS: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Where the keys of TILE queries from position ``lowest`` on begin, need no mask, and end.

    Keys [begin, full_begin) and [full_end, end) need one: the window's edge and the diagonal.
    """
    begin = 0
    full_begin = 0
    if WINDOW:
        begin = tl.maximum(lowest - window + 1, 0) // BLOCK_KEYS * BLOCK_KEYS
        full_begin = tl.cdiv(tl.maximum(lowest + TILE - window, 0), BLOCK_KEYS) * BLOCK_KEYS
    full_end = tl.maximum((lowest + 1) // BLOCK_KEYS * BLOCK_KEYS, begin)
    full_begin = tl.minimum(tl.maximum(full_begin, begin), full_end)
    return begin, full_begin, full_end, tl.minimum(lowest + TILE, context)
