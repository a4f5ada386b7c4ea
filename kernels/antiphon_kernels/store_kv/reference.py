"""Writing keys and values into the paged cache, in plain torch."""

from __future__ import annotations

import torch


def store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    write_slot: torch.Tensor,
) -> None:
    """Copies row n of k and v into slot ``write_slot[n]`` of the caches, in place.

    Args:
        k, v: (N, Hkv, D) and (N, Hkv, Dv).
        k_cache, v_cache: (slots, Hkv, D) and (slots, Hkv, Dv), one dtype with k and v.
        write_slot: (N) int64, distinct but for padding rows, which all name a null slot.
    """
    k_cache.index_copy_(0, write_slot, k)
    v_cache.index_copy_(0, write_slot, v)
