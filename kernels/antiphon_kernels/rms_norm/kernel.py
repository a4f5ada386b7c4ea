# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# Triton declares neither its CUDA extras nor the options of a launch.
"""RMS normalisation on CUDA: a program holds whole rows, so statistics need one read."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from antiphon_kernels.launch import early_launch

ELEMENTS = 2048
"""Elements that a program of short rows (per-head norms) takes together."""


@triton.jit(do_not_specialize=["rows"])
def _rms_norm(
    x, residual, weight, normed, total, rows, heads, dim, eps,
    x_row, x_head, out_row, out_head,
    ADD: tl.constexpr, PLUS_ONE: tl.constexpr, EARLY: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    column = tl.arange(0, BLOCK_DIM)[None, :]
    inside = (row < rows) & (column < dim)
    scale = tl.load(weight + column, mask=column < dim, other=0.0).to(tl.float32)
    if PLUS_ONE:
        scale += 1.0
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    value = tl.load(x + row // heads * x_row + row % heads * x_head + column, inside, other=0.0)
    wide = value.to(tl.float32)
    if ADD:
        added = tl.load(residual + row * dim + column, inside, other=0.0)
        value = (wide + added.to(tl.float32)).to(total.dtype.element_ty)
        tl.store(total + row * dim + column, value, inside)
        wide = value.to(tl.float32)
    mean_square = tl.sum(wide * wide, axis=1)[:, None] / dim
    result = wide * tl.rsqrt(mean_square + eps) * scale
    place = normed + row // heads * out_row + row % heads * out_head + column
    tl.store(place, result.to(normed.dtype.element_ty), inside)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, plus_one: bool, out: torch.Tensor | None
) -> torch.Tensor:
    """Launches :func:`antiphon_kernels.rms_norm.rms_norm` on x's device."""
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.stride(-1) != 1 or out.stride(-1) != 1:
        raise ValueError("rms_norm: the last axis of x and out must be contiguous")
    _launch(x, x, weight, eps, plus_one, out, out, add=False)
    return out


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    plus_one: bool,
    out: tuple[torch.Tensor, torch.Tensor] | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launches :func:`antiphon_kernels.rms_norm.add_rms_norm` on x's device."""
    if out is None:
        normed, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    else:
        normed, total = out
    if not (residual.is_contiguous() and total.is_contiguous()):
        raise ValueError("add_rms_norm: residual and sum must be contiguous")
    _launch(x, residual, weight, eps, plus_one, normed, total, add=True)
    return normed, total


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    plus_one: bool,
    normed: torch.Tensor,
    total: torch.Tensor,
    *,
    add: bool,
) -> None:
    dim = x.shape[-1]
    heads = x.shape[1] if x.dim() == 3 else 1
    rows = x.shape[0] * heads
    if rows == 0:
        return
    block_dim = triton.next_power_of_2(dim)
    block_rows = max(1, ELEMENTS // block_dim)
    early = early_launch(x.device)
    _rms_norm[(triton.cdiv(rows, block_rows),)](
        x, residual, weight, normed, total, rows, heads, dim, eps,
        x.stride(0), x.stride(1) if heads > 1 else 0,
        normed.stride(0), normed.stride(1) if heads > 1 else 0,
        ADD=add, PLUS_ONE=plus_one, EARLY=early,
        BLOCK_ROWS=block_rows, BLOCK_DIM=block_dim,
        num_warps=8 if block_dim >= 4096 else 4, launch_pdl=early,
    )  # fmt: skip
