"""What lies between the qkv product and attention, composed of the single operations."""

from __future__ import annotations

import torch

from antiphon_kernels.rms_norm.reference import rms_norm
from antiphon_kernels.rope.reference import rope
from antiphon_kernels.store_kv.reference import store_kv


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
    """Norms and rotates q and k, leaves q in the row, stores k and v; fp32, rounded once.

    Args:
        qkv: (N, (Hq + 2 Hkv) D): q, k and v heads of each token side by side.
        k_cache, v_cache: (slots, Hkv, D).
        heads: Hq.
        positions: (N) rows of the tables.
        write_slot: (N) int64.
        cos, sin: (P, R/2) fp32, R <= D.
        q_weight, k_weight: (D) weights of the per-head RMS norms, or None for none.
        eps, plus_one: of those norms.
    """
    kv_heads, dim = k_cache.shape[1:]
    q, k, v = qkv.unflatten(1, (-1, dim)).split((heads, kv_heads, kv_heads), dim=1)
    wide_q, wide_k = q.float(), k.float()
    if q_weight is not None:
        wide_q = rms_norm(wide_q, q_weight, eps, plus_one=plus_one)
    if k_weight is not None:
        wide_k = rms_norm(wide_k, k_weight, eps, plus_one=plus_one)
    wide_q, wide_k = wide_q.clone(), wide_k.clone()
    rope(wide_q, wide_k, positions, cos, sin)
    q.copy_(wide_q)
    store_kv(wide_k.to(k_cache.dtype), v.to(v_cache.dtype), k_cache, v_cache, write_slot)
