# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# Triton declares neither its CUDA extras nor the options of a launch.
"""The cache store on CUDA."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from antiphon_kernels.launch import early_launch


@triton.jit
def _store_kv(
    k, v, k_cache, v_cache, write_slot, k_width, v_width, dim_k, dim_v,
    k_row, k_head, v_row, v_head,
    EARLY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(write_slot + row)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keys = tl.load(k + row * k_row + place // dim_k * k_head + place % dim_k, place < k_width)
    tl.store(k_cache + slot * k_width + place, keys, place < k_width)
    values = tl.load(v + row * v_row + place // dim_v * v_head + place % dim_v, place < v_width)
    tl.store(v_cache + slot * v_width + place, values, place < v_width)


def store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    write_slot: torch.Tensor,
) -> None:
    """Launches :func:`antiphon_kernels.store_kv.store_kv`; slots are not checked."""
    rows, kv_heads, dim_k = k.shape
    dim_v = v.shape[2]
    if k.stride(2) != 1 or v.stride(2) != 1:
        raise ValueError("store_kv: heads must be contiguous")
    if rows == 0:
        return
    widest = kv_heads * max(dim_k, dim_v)
    block = min(1024, triton.next_power_of_2(widest))
    early = early_launch(k.device)
    _store_kv[(rows, triton.cdiv(widest, block))](
        k, v, k_cache, v_cache, write_slot, kv_heads * dim_k, kv_heads * dim_v, dim_k, dim_v,
        k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        EARLY=early, BLOCK=block, num_warps=4, launch_pdl=early,
    )  # fmt: skip
