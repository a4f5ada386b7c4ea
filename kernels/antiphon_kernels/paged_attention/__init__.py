"""Causal variable-length attention over a paged cache, for prefill and decode alike."""

from __future__ import annotations

from typing import Any

import torch

from antiphon_kernels.paged_attention import reference
from antiphon_kernels.paged_attention.split import decode_queries, new_workspace
from antiphon_kernels.runtime import fall_back, native_for

__all__ = ["decode_queries", "new_workspace", "paged_attention"]

MAX_HEAD_DIM = 512
HEAD_DIM_STEP = 16
"""What the native kernel takes; other head sizes run the reference."""


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
    max_query: int | None = None,
    max_context: int | None = None,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attends every query to the keys of its row at or before its position.

    On CPU the arithmetic of a query depends on its position alone: the native kernel gives
    the same bits whatever the batch, the chunking of the prompt and the thread count. On CUDA
    it depends on the launch's host facts too (B, max_query, max_context), never on the other
    rows' contents.

    On CUDA a launch may be captured in a graph: its grid follows from the shapes, max_query
    and max_context; query_start, context_len and block_table are read on the device. Rows may
    begin anywhere in q, so the decode rows and the prefill rows of a mixed step are two calls
    over the same q and out with slices of the row metadata; queries of other rows are left
    alone. A padding row has context 1, one query and a table of null pages. The row metadata
    and earlier keys may be read before the launch right before this one has ended: that one
    makes q and this step's keys, not the metadata.

    Args:
        q: (N, Hq, D); a view into a fused qkv row is fine.
        k_cache, v_cache: (slots, Hkv, D) contiguous, already holding this step's keys.
        query_start: (B+1) int32 offsets into q.
        context_len: (B) int32, keys of the row including this step's.
        block_table: (B, W) int32; block 0 is the null page.
        block_tokens: slots per block; the slot of key p of row b is
            ``block_table[b, p // block_tokens] * block_tokens + p % block_tokens``.
        scale: factor of the dot products.
        window: key p is visible to a query at i iff ``i - window < p <= i``; 0 means all.
        softcap: scores become ``softcap * tanh(score / softcap)``; 0 means none.
        sinks: (Hq) fp32 or None, a score per head that takes part in the softmax without a
            value.
        max_query: most queries of any row, a host fact; required on CUDA. Up to
            ``decode_queries(Hq // Hkv)`` the split-KV decode kernel runs, above it the tiled
            prefill kernel.
        max_context: bound on context_len, a host fact that sizes the split; the width of the
            block table by default.
        workspace: of :func:`new_workspace`; its counters are zero before and after every
            call. Launches that may overlap need their own. Without one a call allocates.
        out: (N, Hq, D) contiguous, written and returned.

    Raises:
        ValueError: shapes disagree, max_query is missing on CUDA, or (on CPU) a row's context
            does not fit its block table.
    """
    if q.shape[1] % k_cache.shape[1]:
        raise ValueError(
            f"paged_attention: {q.shape[1]} query heads are no multiple of "
            f"{k_cache.shape[1]} key heads"
        )
    row_facts: dict[str, Any] = {
        "query_start": query_start,
        "context_len": context_len,
        "block_table": block_table,
        "block_tokens": block_tokens,
        "scale": scale,
        "window": window,
        "softcap": softcap,
        "sinks": sinks,
    }
    if q.is_cuda:
        from antiphon_kernels.paged_attention import launcher

        if max_query is None:
            raise ValueError("paged_attention: max_query is required on CUDA")
        host_facts: dict[str, Any] = {"max_query": max_query, "max_context": max_context}
        return launcher.paged_attention(
            q, k_cache, v_cache, **row_facts, **host_facts, workspace=workspace, out=out
        )
    native = native_for("paged_attention", q, k_cache, v_cache)
    dim = q.shape[2]
    if native is not None and (dim % HEAD_DIM_STEP or dim > MAX_HEAD_DIM):
        native = fall_back("paged_attention", f"head_dim {dim}")
    if native is not None and sinks is not None:
        native = fall_back("paged_attention", "sinks")
    if native is None:
        result = reference.paged_attention(q, k_cache, v_cache, **row_facts)
        return result if out is None else out.copy_(result)
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype)
    native.paged_attention(
        q, k_cache, v_cache, query_start, context_len, block_table, block_tokens,
        scale, window, softcap, out,
    )  # fmt: skip
    return out
