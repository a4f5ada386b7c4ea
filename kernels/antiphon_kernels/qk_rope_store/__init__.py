"""Per-head q and k norms, rotary embedding and the cache store as one operation."""

from __future__ import annotations

import torch

from antiphon_kernels.rms_norm import rms_norm
from antiphon_kernels.rope import rope
from antiphon_kernels.store_kv import store_kv


def qk_rope_store(
    qkv: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    heads: int,
    positions: torch.Tensor,
    write_slot: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    eps: float = 0.0,
    plus_one: bool = False,
) -> None:
    """Norms and rotates q and k of a fused row; q stays in the row, k and v go to the cache.

    Attention then reads q as ``qkv[:, :Hq * D].unflatten(1, (Hq, D))``. The k part of the row
    holds unspecified values afterwards. On CUDA positions and slots may be read before the
    launch right before this one has ended: that one makes the row, not them.

    Args:
        qkv: (N, (Hq + 2 Hkv) D): q, k and v heads of each token side by side; last axis
            contiguous. The q part is overwritten.
        k_cache, v_cache: (slots, Hkv, D) contiguous; written in place.
        heads: Hq.
        positions: (N) int32 within [0, P).
        write_slot: (N) int64 within [0, slots), distinct but for padding rows.
        cos, sin: (P, R/2) fp32 contiguous; pair i is elements i and i + R/2 of the first R of
            D (the NeoX layout), the rest is not rotated.
        q_weight, k_weight: (D) weights of RMS norms over each head, before the rotation; None
            for none. Either both or neither.
        eps, plus_one: of those norms, as for :func:`antiphon_kernels.rms_norm.rms_norm`.

    Raises:
        ValueError: shapes disagree.
        IndexError: on CPU, a position or slot is out of range. On CUDA they are not checked.
    """
    kv_heads, dim = k_cache.shape[1:]
    width = (heads + 2 * kv_heads) * dim
    if qkv.shape[1] != width:
        raise ValueError(f"qk_rope_store: a row of {qkv.shape[1]} values, expected {width}")
    if (q_weight is None) != (k_weight is None):
        raise ValueError("qk_rope_store: give both norm weights or none")
    if qkv.is_cuda:
        from antiphon_kernels.qk_rope_store import kernel

        kernel.qk_rope_store(
            qkv, k_cache, v_cache, heads, positions, write_slot, cos, sin,
            q_weight, k_weight, eps, plus_one,
        )  # fmt: skip
        return
    q, k, v = qkv.unflatten(1, (-1, dim)).split((heads, kv_heads, kv_heads), dim=1)
    if q_weight is not None and k_weight is not None:
        rms_norm(q, q_weight, eps, plus_one=plus_one, out=q)
        rms_norm(k, k_weight, eps, plus_one=plus_one, out=k)
    rope(q, k, positions, cos, sin)
    store_kv(k, v, k_cache, v_cache, write_slot)
