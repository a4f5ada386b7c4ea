# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# Triton declares neither its CUDA extras nor the options of a launch.
"""A linear layer of few rows on CUDA: the weight streams once through tensor-core tiles.

All rows share every loaded weight tile. The norm before the product costs no pass of its own:
``(x / rms(x) * n) @ W.T = ((x * n) @ W.T) / rms(x)``, and the mean square is summed while x
streams by.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from antiphon_kernels.gated_activation.kernel import activate
from antiphon_kernels.launch import early_launch, processors

ROWS = 16
"""Rows of a tile: the matrix unit's, whatever the number of live rows."""


@triton.jit
def linear(
    x, weight, bias, norm_weight, residual, out,
    rows, width, depth, eps, x_row, residual_row, out_row,
    NORM: tl.constexpr, PLUS_ONE: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr, EARLY: tl.constexpr, WHOLE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_DEPTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """BLOCK_OUT outputs of all rows; with an activation, that many gates and their ups."""
    first = tl.program_id(0) * BLOCK_OUT
    output = first + tl.arange(0, BLOCK_OUT)
    present = output < width
    row = tl.arange(0, ROWS)
    live = row < rows
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    step = tl.arange(0, BLOCK_DEPTH)
    w_place = weight + output.to(tl.int64)[:, None] * depth + step[None, :]
    up_place = w_place + tl.cast(width, tl.int64) * depth
    x_place = x + row.to(tl.int64)[:, None] * x_row + step[None, :]
    acc = tl.zeros([ROWS, BLOCK_OUT], dtype=tl.float32)
    up_acc = tl.zeros([ROWS, BLOCK_OUT], dtype=tl.float32)
    squares = tl.zeros([ROWS, BLOCK_DEPTH], dtype=tl.float32)
    for begin in tl.range(0, depth, BLOCK_DEPTH, num_stages=STAGES):
        x_mask = live[:, None]
        w_mask = present[:, None]
        if not WHOLE:
            x_mask = x_mask & (begin + step < depth)[None, :]
            w_mask = w_mask & (begin + step < depth)[None, :]
        block = tl.load(x_place + begin, x_mask, other=0.0)
        if NORM:
            if WHOLE:
                scale = tl.load(norm_weight + begin + step).to(tl.float32)
            else:
                scale = tl.load(norm_weight + begin + step, begin + step < depth, other=0.0)
                scale = scale.to(tl.float32)
            if PLUS_ONE:
                scale += 1.0
            wide = block.to(tl.float32)
            squares += wide * wide
            block = (wide * scale[None, :]).to(block.dtype)
        w = tl.load(w_place + begin, w_mask, other=0.0)
        acc = tl.dot(block, w.T, acc, input_precision="ieee")
        if ACTIVATION != "":
            up = tl.load(up_place + begin, w_mask, other=0.0)
            up_acc = tl.dot(block, up.T, up_acc, input_precision="ieee")
    if NORM:
        inverse = tl.rsqrt(tl.sum(squares, axis=1) / depth + eps)[:, None]
        acc *= inverse
        up_acc *= inverse
    if BIAS:
        acc += tl.load(bias + output, present, other=0.0).to(tl.float32)[None, :]
    if ACTIVATION != "":
        if BIAS:
            up_acc += tl.load(bias + width + output, present, other=0.0).to(tl.float32)[None, :]
        acc = activate(acc, ACTIVATION) * up_acc
    mask = live[:, None] & present[None, :]
    if RESIDUAL:
        r_place = residual + row.to(tl.int64)[:, None] * residual_row + output[None, :]
        acc += tl.load(r_place, mask, other=0.0).to(tl.float32)
    o_place = out + row.to(tl.int64)[:, None] * out_row + output[None, :]
    tl.store(o_place, acc.to(out.dtype.element_ty), mask)


@dataclass(frozen=True)
class Shape:
    """Tile of one launch."""

    outputs: int
    depth: int
    warps: int
    stages: int


def choose_shape(width: int, depth: int, gated: bool, item_bytes: int, count: int) -> Shape:
    """Outputs of a program: few enough that a small layer still covers ``count`` processors."""
    outputs = 16 if width <= 32 * count or gated else 32
    span = 64 if item_bytes == 4 else 256
    return Shape(outputs, min(span, max(16, 1 << (depth - 1).bit_length())), 4, 4)


def small_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    eps: float,
    plus_one: bool,
    activation: str | None,
    residual: torch.Tensor | None,
    out: torch.Tensor | None,
    shape: Shape | None = None,
) -> torch.Tensor:
    """Launches :func:`antiphon_kernels.small_linear.small_linear`; ``shape`` is for sweeps."""
    rows, depth = x.shape
    width = weight.shape[0] // 2 if activation else weight.shape[0]
    if rows > ROWS:
        raise ValueError(f"small_linear: {rows} rows, at most {ROWS}")
    if x.stride(1) != 1 or not weight.is_contiguous():
        raise ValueError("small_linear: the weight and the rows of x must be contiguous")
    if out is None:
        out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    if out.stride(1) != 1 or (residual is not None and residual.stride(1) != 1):
        raise ValueError("small_linear: rows of out and residual must be contiguous")
    if rows == 0:
        return out
    if shape is None:
        shape = choose_shape(
            width, depth, activation is not None, x.element_size(), processors(x.device)
        )
    early = early_launch(x.device)
    linear[(triton.cdiv(width, shape.outputs),)](
        x, weight, x if bias is None else bias, x if norm_weight is None else norm_weight,
        x if residual is None else residual, out,
        rows, width, depth, eps,
        x.stride(0), 0 if residual is None else residual.stride(0), out.stride(0),
        NORM=norm_weight is not None, PLUS_ONE=plus_one, ACTIVATION=activation or "",
        BIAS=bias is not None, RESIDUAL=residual is not None, EARLY=early,
        WHOLE=depth % shape.depth == 0, ROWS=ROWS,
        BLOCK_OUT=shape.outputs, BLOCK_DEPTH=shape.depth, STAGES=shape.stages,
        num_warps=shape.warps, launch_pdl=early,
    )  # fmt: skip
    return out
