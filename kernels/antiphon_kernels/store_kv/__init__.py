"""Writing keys and values into the paged cache."""

from __future__ import annotations

import torch

from antiphon_kernels.runtime import native_for
from antiphon_kernels.store_kv import reference


def store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    write_slot: torch.Tensor,
) -> None:
    """Copies row n of k and v into slot ``write_slot[n]`` of the caches, in place.

    Args:
        k, v: (N, Hkv, D) and (N, Hkv, Dv); views into a fused qkv row are fine.
        k_cache, v_cache: (slots, Hkv, D) and (slots, Hkv, Dv), contiguous.
        write_slot: (N) int64 within [0, slots).

    Raises:
        IndexError: on CPU, a slot lies outside the cache; nothing was written then. On CUDA
            slots are not checked.
    """
    if k.is_cuda:
        from antiphon_kernels.store_kv import kernel

        kernel.store_kv(k, v, k_cache, v_cache, write_slot)
        return
    native = native_for("store_kv", k, v, k_cache, v_cache)
    if native is None:
        reference.store_kv(k, v, k_cache, v_cache, write_slot)
    else:
        native.store_kv(k, v, k_cache, v_cache, write_slot)
