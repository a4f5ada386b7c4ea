# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
# Triton declares neither its ranges nor the options of a launch.
"""Prefill attention in two steps: pages copied into rows of keys, then torch's flash attention.

It reads and writes the cache once more than a kernel that follows the block table, and has no
window, cap or sinks; measured beside :mod:`launcher` by ``bench.gpu_kernels``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _gather(
    k_cache, v_cache, keys, values, key_start, block_table, table_stride,
    SLOT: tl.constexpr, BLOCK_TOKENS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One page of one row; pages beyond its keys have nothing to do."""
    page = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    start = tl.load(key_start + row)
    first = page * BLOCK_TOKENS
    left = tl.minimum(tl.load(key_start + row + 1) - start - first, BLOCK_TOKENS) * SLOT
    if left > 0:
        block = tl.load(block_table + row * table_stride + page).to(tl.int64)
        source = block * (BLOCK_TOKENS * SLOT)
        target = (start + first).to(tl.int64) * SLOT
        for begin in tl.static_range(0, BLOCK_TOKENS * SLOT, CHUNK):
            at = begin + tl.arange(0, CHUNK)
            inside = at < left
            tl.store(keys + target + at, tl.load(k_cache + source + at, inside), inside)
            tl.store(values + target + at, tl.load(v_cache + source + at, inside), inside)


def gather(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    key_start: torch.Tensor,
    block_table: torch.Tensor,
    block_tokens: int,
    max_context: int,
    out: tuple[torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies the keys and values of every row, one row after the other.

    Args:
        k_cache, v_cache: (slots, Hkv, D) contiguous.
        key_start: (B+1) int32 offsets of the rows into ``out``.
        block_table: (B, W) int32.
        block_tokens: slots per block.
        max_context: bound on the keys of a row, a host fact.
        out: keys and values, (sum of contexts, Hkv, D) contiguous each; written and returned.
    """
    slot = k_cache.shape[1] * k_cache.shape[2]
    _gather[(-(-max_context // block_tokens), block_table.shape[0])](
        k_cache, v_cache, *out, key_start, block_table, block_table.stride(0),
        SLOT=slot, BLOCK_TOKENS=block_tokens,
        CHUNK=min(4096, triton.next_power_of_2(block_tokens * slot)), num_warps=4,
    )  # fmt: skip
    return out


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    query_start: torch.Tensor,
    key_start: torch.Tensor,
    max_query: int,
    max_context: int,
    scale: float,
) -> torch.Tensor:
    """Causal attention, the last query of a row at its last key (FlashAttention-2).

    Args:
        q: (N, Hq, D) half precision on CUDA, D at most 256 and a multiple of 8.
        keys, values: of :func:`gather`.
        query_start, key_start: (B+1) int32 offsets into q and into keys.
        max_query, max_context: bounds on a row's queries and keys, host facts.
        scale: factor of the dot products.

    Returns:
        (N, Hq, D) of q's dtype.
    """
    return torch.ops.aten._flash_attention_forward(
        q, keys, values, query_start, key_start, max_query, max_context,
        0.0, True, False, scale=scale,
    )[0]  # fmt: skip
