"""Causal variable-length attention over a paged cache, in plain torch."""

from __future__ import annotations

import torch


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
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attends every query to the keys of its row at or before its position, in fp32.

    Query j of row b sits at position ``i = context_len[b] - len_b + j`` where len_b is the
    row's query count; key p lies in slot ``block_table[b, p // block_tokens] * block_tokens +
    p % block_tokens``. Query head h reads key head ``h // (Hq // Hkv)``.

    Args:
        q: (N, Hq, D), rows of the batch one after the other.
        k_cache, v_cache: (slots, Hkv, D).
        query_start: (B+1) int32 offsets into q.
        context_len: (B) int32, keys of the row including this step's.
        block_table: (B, W) int32.
        block_tokens: slots per block.
        scale: factor of the dot products.
        window: key p is visible iff ``i - window < p <= i``; 0 means no window.
        softcap: scores become ``softcap * tanh(score / softcap)``; 0 means none.
        sinks: (Hq) or None, a score per head that takes part in the softmax without a value.

    Returns:
        (N, Hq, D) of q's dtype; queries outside ``query_start`` are zero.
    """
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    starts = query_start.tolist()
    lengths = context_len.tolist()
    group = q.shape[1] // k_cache.shape[1]
    for row, context in enumerate(lengths):
        begin, end = starts[row], starts[row + 1]
        if begin == end:
            continue
        positions = torch.arange(context, device=q.device)
        blocks = block_table[row].long()[positions // block_tokens]
        slots = blocks * block_tokens + positions % block_tokens
        keys = k_cache[slots].float().repeat_interleave(group, dim=1)
        values = v_cache[slots].float().repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[begin:end].float(), keys) * scale
        if softcap > 0.0:
            scores = softcap * torch.tanh(scores / softcap)
        query_position = torch.arange(context - (end - begin), context, device=q.device)
        visible = positions[None, :] <= query_position[:, None]
        if window > 0:
            visible &= positions[None, :] > query_position[:, None] - window
        scores = scores.masked_fill(~visible, float("-inf"))
        if sinks is not None:
            sink = sinks.float()[:, None, None].expand(-1, end - begin, 1)
            scores = torch.cat((scores, sink), dim=-1)
        weights = scores.softmax(-1)[..., :context]
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
    return out
