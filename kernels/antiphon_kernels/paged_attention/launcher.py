# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# Triton declares neither its CUDA extras nor the options of a launch.
"""Launches of the paged attention kernels: what follows from host facts alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from antiphon_kernels.launch import early_launch, processors
from antiphon_kernels.paged_attention import kernel, prefill, split

LOG2E = 1.4426950408889634


@dataclass(frozen=True)
class Shape:
    """Tile of one launch; shared memory of a stage is ``2 * keys * dim`` values.

    Attributes:
        queries: of a tile.
        keys: of a block.
        warps: of a program.
        stages: blocks in flight.
        registers: most of a thread, so that more programs fit; None leaves it to the compiler.
    """

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None


def decode_shape(tile: int, block_dim: int, item_bytes: int) -> Shape:
    """Tile of the decode kernel: about 32 KiB of keys and values in each stage."""
    keys = 64
    while keys > 16 and keys * block_dim * item_bytes > 16384:
        keys //= 2
    return Shape(tile, keys, 2, 2) if tile == 16 else Shape(tile, keys, 4, 3)


def prefill_shape(block_dim: int, item_bytes: int, max_context: int) -> Shape:
    """Tile of the prefill kernel: what registers hold of the fp32 accumulator.

    Short contexts leave a tile few blocks, so that two small programs on a multiprocessor hide
    more than a large one: 213 against 281 us for 64 rows of 256 tokens, even at 1024, 1327
    against 1244 at 2048 (32 heads of 128 on an H200).
    """
    if item_bytes == 4:
        return Shape(32, 32, 4, 2) if block_dim <= 128 else Shape(16, 16, 4, 2)
    if block_dim == 128:
        return Shape(128, 32, 8, 3, 128) if max_context <= 1024 else Shape(128, 128, 8, 3)
    if block_dim < 128:
        return Shape(128, 64, 8, 4)
    return Shape(64, 32, 4, 3) if block_dim <= 256 else Shape(32, 32, 4, 2)


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    query_start: torch.Tensor,
    context_len: torch.Tensor,
    block_table: torch.Tensor,
    block_tokens: int,
    scale: float,
    window: int,
    softcap: float,
    sinks: torch.Tensor | None,
    max_query: int,
    max_context: int | None,
    workspace: torch.Tensor | None,
    out: torch.Tensor | None,
    shape: Shape | None = None,
) -> torch.Tensor:
    """Launches :func:`antiphon_kernels.paged_attention.paged_attention`; ``shape`` for sweeps."""
    _, heads, dim = q.shape
    kv_heads, rows = k_cache.shape[1], context_len.shape[0]
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()) or q.stride(2) != 1:
        raise ValueError("paged_attention: caches and query heads must be contiguous")
    if block_tokens & (block_tokens - 1):
        raise ValueError(f"paged_attention: {block_tokens} block tokens are no power of two")
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    elif not out.is_contiguous():
        raise ValueError("paged_attention: out must be contiguous")
    if rows == 0 or q.shape[0] == 0:
        return out
    pointers = (
        q, k_cache, v_cache, out, query_start, context_len, block_table,
        q if sinks is None else sinks,
    )  # fmt: skip
    numbers = (
        block_table.stride(0), q.stride(0), q.stride(1),
        (softcap or scale) * LOG2E, scale / softcap if softcap else 0.0, window,
    )  # fmt: skip
    constants = {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "DIM": dim,
        "BLOCK_TOKENS": block_tokens,
        "BLOCK_DIM": max(16, triton.next_power_of_2(dim)),
        "WINDOW": window > 0,
        "SOFTCAP": softcap > 0.0,
        "SINKS": sinks is not None,
    }
    context = max_context or block_table.shape[1] * block_tokens
    if max_query <= split.decode_queries(heads // kv_heads):
        _decode(pointers, numbers, constants, rows, max_query, context, workspace, shape)
    else:
        _prefill(pointers, numbers, constants, rows, context, shape)
    return out


def _decode(
    pointers: tuple[torch.Tensor, ...],
    numbers: tuple[float, ...],
    constants: dict[str, int | bool],
    rows: int,
    max_query: int,
    max_context: int,
    workspace: torch.Tensor | None,
    shape: Shape | None,
) -> None:
    q = pointers[0]
    heads, kv_heads = constants["HEADS"], constants["KV_HEADS"]
    block_dim = constants["BLOCK_DIM"]
    chunks = split.chunk_count(rows, kv_heads, max_query, processors(q.device))
    pieces, chunk = rows * chunks, -(-max_query // chunks)
    tile = split.tile_rows(chunk, heads // kv_heads)
    if shape is None:
        shape = decode_shape(tile, block_dim, q.element_size())
    splits = split.split_count(pieces, kv_heads, max_context, processors(q.device))
    live = split.live_pairs(chunk, heads // kv_heads)
    # Whole 16-byte words, so that no pointer's alignment depends on the batch.
    parts = -(-pieces * kv_heads * splits * live // 4) * 4
    needed = split.COUNTERS + parts * (block_dim + 2) if splits > 1 else 0
    if workspace is None:
        workspace = torch.zeros(max(1, needed), dtype=torch.float32, device=q.device)
    if workspace.numel() < needed:
        raise ValueError(
            f"paged_attention: a workspace of {workspace.numel()} elements, {needed} needed"
        )
    counters, partial = workspace[: split.COUNTERS], workspace[split.COUNTERS :]
    early = early_launch(q.device)
    # A full device has its loads in flight without being asked ahead of time.
    lines = triton.next_power_of_2(max(1, constants["DIM"] * q.element_size() // 128))
    kernel.decode[(kv_heads, splits, pieces)](
        *pointers, counters.view(torch.int32),
        partial, partial[parts * block_dim :], partial[parts * (block_dim + 1) :],
        splits, *numbers, **constants,
        CHUNKS=chunks, CHUNK=chunk, TILE=tile, LIVE=live,
        BLOCK_KEYS=shape.keys, STAGES=shape.stages,
        EARLY=early, LINES=lines if early and splits > 1 else 0,
        num_warps=shape.warps, launch_pdl=early,
    )  # fmt: skip


def _prefill(
    pointers: tuple[torch.Tensor, ...],
    numbers: tuple[float, ...],
    constants: dict[str, int | bool],
    rows: int,
    max_context: int,
    shape: Shape | None,
) -> None:
    q = pointers[0]
    if shape is None:
        shape = prefill_shape(constants["BLOCK_DIM"], q.element_size(), max_context)
    grid = (constants["HEADS"], q.shape[0] // shape.queries + rows)
    prefill.prefill[grid](
        *pointers, rows, *numbers, **constants,
        TILE=shape.queries, BLOCK_KEYS=shape.keys, STAGES=shape.stages,
        SEARCH=min(256, triton.next_power_of_2(rows)),
        num_warps=shape.warps, maxnreg=shape.registers,
    )  # fmt: skip
