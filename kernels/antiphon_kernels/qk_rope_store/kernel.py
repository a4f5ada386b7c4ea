# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# Triton declares neither its CUDA extras nor the options of a launch.
"""Head norms, rotation and the cache store on CUDA: one read of the fused row.

A program takes a few heads of one token, all of one kind (q, k or v). Position, slot and
angles are read before the wait: the kernel right before only makes the row.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from antiphon_kernels.launch import early_launch

MOST_HEADS = 8


@triton.jit
def _qk_rope_store(
    qkv, k_cache, v_cache, positions, write_slot, cos, sin, q_weight, k_weight, eps, qkv_row,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr,
    NORM: tl.constexpr, PLUS_ONE: tl.constexpr, EARLY: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
    row = qkv + token * qkv_row
    slot = tl.load(write_slot + token)
    half = tl.arange(0, BLOCK_HALF)[None, :]
    angle = tl.load(positions + token).to(tl.int64) * HALF + half
    c = tl.load(cos + angle, half < HALF, other=0.0)
    s = tl.load(sin + angle, half < HALF, other=0.0)
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if tl.program_id(1) < HEADS // BLOCK_HEADS:
        _head_pass(
            row + head * DIM, row + head * DIM, c, s, q_weight, eps,
            DIM, HALF, NORM, PLUS_ONE, BLOCK_HALF, BLOCK_REST,
        )  # fmt: skip
    elif tl.program_id(1) < (HEADS + KV_HEADS) // BLOCK_HEADS:
        _head_pass(
            row + head * DIM, k_cache + slot * (KV_HEADS * DIM) + (head - HEADS) * DIM,
            c, s, k_weight, eps,
            DIM, HALF, NORM, PLUS_ONE, BLOCK_HALF, BLOCK_REST,
        )  # fmt: skip
    else:
        column = tl.arange(0, BLOCK_DIM)[None, :]
        value = tl.load(row + head * DIM + column, column < DIM)
        place = slot * (KV_HEADS * DIM) + (head - HEADS - KV_HEADS) * DIM + column
        tl.store(v_cache + place, value.to(v_cache.dtype.element_ty), column < DIM)


@triton.jit
def _head_pass(
    source, target, c, s, weight, eps,
    DIM: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr, PLUS_ONE: tl.constexpr,
    BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr,
):  # fmt: skip
    """Norms heads at pointers (B, 1) and rotates them by c, s (1, R/2) from source to target."""
    column = tl.arange(0, BLOCK_HALF)[None, :]
    inside = column < HALF
    first = tl.load(source + column, inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF + column, inside, other=0.0).to(tl.float32)
    rest_column = 2 * HALF + tl.arange(0, BLOCK_REST)[None, :]
    rest_inside = rest_column < DIM
    rest = tl.load(source + rest_column, rest_inside, other=0.0).to(tl.float32)
    if NORM:
        square = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
        square += tl.sum(rest * rest, axis=1)
        inverse = tl.rsqrt(square / DIM + eps)[:, None]
        first = first * inverse * _scale(weight + column, inside, PLUS_ONE)
        second = second * inverse * _scale(weight + HALF + column, inside, PLUS_ONE)
        rest = rest * inverse * _scale(weight + rest_column, rest_inside, PLUS_ONE)
    dtype: tl.constexpr = target.dtype.element_ty
    tl.store(target + column, (first * c - second * s).to(dtype), inside)
    tl.store(target + HALF + column, (second * c + first * s).to(dtype), inside)
    tl.store(target + rest_column, rest.to(dtype), rest_inside)


@triton.jit
def _scale(place, inside, PLUS_ONE: tl.constexpr):
    scale = tl.load(place, inside, other=0.0).to(tl.float32)
    if PLUS_ONE:
        scale += 1.0
    return scale


def qk_rope_store(
    qkv: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    heads: int,
    positions: torch.Tensor,
    write_slot: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    eps: float,
    plus_one: bool,
) -> None:
    """Launches :func:`antiphon_kernels.qk_rope_store.qk_rope_store`."""
    kv_heads, dim = k_cache.shape[1:]
    half = cos.shape[1]
    if qkv.stride(1) != 1 or not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError("qk_rope_store: rows and caches must be contiguous")
    if qkv.shape[0] == 0:
        return
    common = math.gcd(heads, kv_heads)
    block_heads = min(MOST_HEADS, common & -common)
    early = early_launch(qkv.device)
    _qk_rope_store[(qkv.shape[0], (heads + 2 * kv_heads) // block_heads)](
        qkv, k_cache, v_cache, positions, write_slot, cos, sin,
        cos if q_weight is None else q_weight, cos if k_weight is None else k_weight,
        eps, qkv.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, HALF=half,
        NORM=q_weight is not None, PLUS_ONE=plus_one, EARLY=early,
        BLOCK_HEADS=block_heads, BLOCK_HALF=triton.next_power_of_2(half),
        BLOCK_REST=triton.next_power_of_2(max(1, dim - 2 * half)),
        BLOCK_DIM=triton.next_power_of_2(dim),
        num_warps=4 if block_heads * dim >= 512 else 1, launch_pdl=early,
    )  # fmt: skip
