# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# Triton declares neither its CUDA extras nor the options of a launch.
"""Rotary position embedding on CUDA."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from antiphon_kernels.launch import early_launch


@triton.jit
def _rope(
    q, k, positions, cos, sin, heads, kv_heads, half, q_row, q_head, k_row, k_head,
    EARLY: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_HALF)[None, :]
    inside = column < half
    angle = tl.load(positions + row).to(tl.int64) * half + column
    c = tl.load(cos + angle, inside, other=0.0)
    s = tl.load(sin + angle, inside, other=0.0)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
    _rotate(q + row * q_row + head * q_head + column, half, c, s, inside & (head < heads))
    key = head - heads
    _rotate(
        k + row * k_row + key * k_head + column, half, c, s,
        inside & (key >= 0) & (key < kv_heads),
    )  # fmt: skip


@triton.jit
def _rotate(place, half, c, s, inside):
    first = tl.load(place, inside, other=0.0).to(tl.float32)
    second = tl.load(place + half, inside, other=0.0).to(tl.float32)
    tl.store(place, (first * c - second * s).to(place.dtype.element_ty), inside)
    tl.store(place + half, (second * c + first * s).to(place.dtype.element_ty), inside)


def rope(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> None:
    """Launches :func:`antiphon_kernels.rope.rope`; positions are not checked."""
    rows, heads, _ = q.shape
    kv_heads, half = k.shape[1], cos.shape[1]
    if q.stride(2) != 1 or k.stride(2) != 1:
        raise ValueError("rope: heads must be contiguous")
    if rows == 0:
        return
    block_heads = min(8, triton.next_power_of_2(heads + kv_heads))
    early = early_launch(q.device)
    _rope[(rows, triton.cdiv(heads + kv_heads, block_heads))](
        q, k, positions, cos, sin, heads, kv_heads, half,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1),
        EARLY=early, BLOCK_HEADS=block_heads, BLOCK_HALF=triton.next_power_of_2(half),
        num_warps=4, launch_pdl=early,
    )  # fmt: skip
