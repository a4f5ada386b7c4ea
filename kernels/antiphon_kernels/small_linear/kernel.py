# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportGeneralTypeIssues=false
# Triton declares neither its CUDA extras, nor the options of a launch, nor constexpr arguments, nor
# that a static range can be iterated.
"""A linear layer of few rows on CUDA: the weight streams through once, at memory speed.

One row, or a few, run on plain multipliers, with the norm folded in at no cost of its own:
``(x / rms(x) * n) @ W.T = ((x * n) @ W.T) / rms(x)``, and the mean square is summed while x
streams by. Several rows share weight tiles on the tensor cores, where scaling x in every
program would cost more than the product, so a norm is a launch before it.

Weights are asked for before the wait for the kernel before: the weight depends on no queued
work, and the memory keeps busy while that kernel drains.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from antiphon_kernels.gated_activation.kernel import activate
from antiphon_kernels.launch import early_launch, processors
from antiphon_kernels.rms_norm.kernel import rms_norm

ROWS = 16
"""Rows of a tensor-core tile, whatever the number of live rows."""


@triton.jit
def _zeros(like, ROWS: tl.constexpr):
    """An accumulator of this shape for each row."""
    rows = ()
    for _ in tl.static_range(ROWS):
        rows += (tl.zeros(like.shape, dtype=tl.float32),)
    return rows


@triton.jit
def _load_rows(x, x_row, place, mask, ROWS: tl.constexpr):
    """The same columns of each row."""
    rows = ()
    for row in tl.static_range(ROWS):
        rows += (tl.load(x + row * x_row + place, mask, other=0.0),)
    return rows


@triton.jit
def _scaled(blocks, scale, NORM: tl.constexpr):
    """The rows in fp32, times the norm's weight."""
    rows = ()
    for row in tl.static_range(len(blocks)):
        values = blocks[row].to(tl.float32)
        if NORM:
            values *= scale
        rows += (values,)
    return rows


@triton.jit
def _add_squares(squares, blocks):
    rows = ()
    for row in tl.static_range(len(blocks)):
        values = blocks[row].to(tl.float32)
        rows += (squares[row] + values * values,)
    return rows


@triton.jit
def _add_products(acc, w, x, BLOCK_OUT: tl.constexpr, BLOCK_DEPTH: tl.constexpr):
    """acc + products of w (BLOCK_OUT, BLOCK_DEPTH) and each x, the 8 of a 16-byte load summed."""
    weights = w.to(tl.float32)
    rows = ()
    for row in tl.static_range(len(acc)):
        products = tl.reshape(weights * x[row][None, :], [BLOCK_OUT, BLOCK_DEPTH // 8, 8])
        rows += (acc[row] + tl.sum(products, axis=2),)
    return rows


@triton.jit
def linear_rows(
    x, weight, bias, norm_weight, residual, out, width, depth, eps, x_row, residual_row, out_row,
    NORM: tl.constexpr, PLUS_ONE: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr, EARLY: tl.constexpr, ONCE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_DEPTH: tl.constexpr,
):  # fmt: skip
    """BLOCK_OUT outputs of a few rows; with an activation, that many gates and their ups.

    A tile of weights lies in registers while the next one is on its way. With ONCE a tile
    covers the whole depth: all of a small weight is under way before the wait.
    """
    output = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    present = output < width
    step = tl.arange(0, BLOCK_DEPTH)
    gate_place = weight + output.to(tl.int64)[:, None] * depth + step[None, :]
    up_place = gate_place + tl.cast(width, tl.int64) * depth
    mask = present[:, None] & (step < depth)[None, :]
    gate = tl.load(gate_place, mask, other=0.0)
    up = gate
    if ACTIVATION != "":
        up = tl.load(up_place, mask, other=0.0)
    scale = tl.zeros([BLOCK_DEPTH], dtype=tl.float32)
    if NORM:
        scale = tl.load(norm_weight + step, step < depth, other=0.0).to(tl.float32)
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    blocks = _load_rows(x, x_row, step, step < depth, ROWS)
    sums = tl.zeros([BLOCK_OUT, BLOCK_DEPTH // 8], dtype=tl.float32)
    acc = _zeros(sums, ROWS)
    up_acc = _zeros(sums, ROWS)
    squares = _zeros(scale, ROWS)
    for begin in tl.range(BLOCK_DEPTH, depth + BLOCK_DEPTH, BLOCK_DEPTH, num_stages=1):
        values = _scaled(blocks, scale + 1.0 if PLUS_ONE else scale, NORM)
        if NORM:
            squares = _add_squares(squares, blocks)
        inside = begin + step < depth
        mask = present[:, None] & inside[None, :]
        current = gate
        if not ONCE:
            gate = tl.load(gate_place + begin, mask, other=0.0)
            blocks = _load_rows(x, x_row, begin + step, inside, ROWS)
            if NORM:
                scale = tl.load(norm_weight + begin + step, inside, other=0.0).to(tl.float32)
        acc = _add_products(acc, current, values, BLOCK_OUT, BLOCK_DEPTH)
        if ACTIVATION != "":
            current = up
            if not ONCE:
                up = tl.load(up_place + begin, mask, other=0.0)
            up_acc = _add_products(up_acc, current, values, BLOCK_OUT, BLOCK_DEPTH)
    for row in tl.static_range(ROWS):
        _store_row(
            tl.sum(acc[row], axis=1), tl.sum(up_acc[row], axis=1),
            tl.rsqrt(tl.sum(squares[row], axis=0) / depth + eps) if NORM else 1.0,
            bias, residual + row * residual_row, out + row * out_row, output, width,
            ACTIVATION, BIAS, RESIDUAL,
        )  # fmt: skip


@triton.jit
def _store_row(
    result, opened, inverse, bias, residual, out, output, width,
    ACTIVATION: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    """One row's outputs, with what follows the product."""
    present = output < width
    result *= inverse
    if BIAS:
        result += tl.load(bias + output, present, other=0.0).to(tl.float32)
    if ACTIVATION != "":
        opened *= inverse
        if BIAS:
            opened += tl.load(bias + width + output, present, other=0.0).to(tl.float32)
        result = activate(result, ACTIVATION) * opened
    if RESIDUAL:
        result += tl.load(residual + output, present, other=0.0).to(tl.float32)
    tl.store(out + output, result.to(out.dtype.element_ty), present)


@triton.jit
def _prefetch(places, mask):
    """Asks for the 128 bytes at each place into the L2 cache."""
    tl.inline_asm_elementwise(
        """
        {
            .reg .pred %asked;
            setp.ne.b32 %asked, $2, 0;
            @%asked prefetch.global.L2 [$1];
            mov.u32 $0, 0;
        }
        """,
        "=r,l,r", [places.to(tl.int64), mask.to(tl.int32)],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def linear_few(
    x, weight, bias, residual, out, rows, width, depth, x_row, residual_row, out_row,
    ACTIVATION: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, EARLY: tl.constexpr,
    WHOLE: tl.constexpr, ROWS: tl.constexpr, BLOCK_OUT: tl.constexpr,
    BLOCK_DEPTH: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """BLOCK_OUT outputs of all rows; with an activation, that many gates and their ups."""
    output = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    present = output < width
    row = tl.arange(0, ROWS)
    live = row < rows
    ups = weight + tl.cast(width, tl.int64) * depth
    if AHEAD > 0:
        line = tl.arange(0, AHEAD)[None, :] * 64
        row_start = output.to(tl.int64)[:, None] * depth
        _prefetch(weight + row_start + line, present[:, None] & (line < depth))
        if ACTIVATION != "":
            _prefetch(ups + row_start + line, present[:, None] & (line < depth))
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    step = tl.arange(0, BLOCK_DEPTH)
    offset = output.to(tl.int64)[:, None] * depth + step[None, :]
    x_place = x + row.to(tl.int64)[:, None] * x_row + step[None, :]
    acc = tl.zeros([ROWS, BLOCK_OUT], dtype=tl.float32)
    up_acc = tl.zeros([ROWS, BLOCK_OUT], dtype=tl.float32)
    for begin in tl.range(0, depth, BLOCK_DEPTH, num_stages=STAGES):
        x_mask = live[:, None]
        w_mask = present[:, None]
        if not WHOLE:
            x_mask = x_mask & (begin + step < depth)[None, :]
            w_mask = w_mask & (begin + step < depth)[None, :]
        block = tl.load(x_place + begin, x_mask, other=0.0)
        w = tl.load(weight + offset + begin, w_mask, other=0.0)
        acc = tl.dot(block, w.T, acc, input_precision="ieee")
        if ACTIVATION != "":
            up = tl.load(ups + offset + begin, w_mask, other=0.0)
            up_acc = tl.dot(block, up.T, up_acc, input_precision="ieee")
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
    """Tile of one launch: outputs and depth of a program's step.

    Attributes:
        outputs: of a program.
        depth: of a step.
        warps: of a program.
        stages: steps under way in shared memory; with 1 the rows run on plain multipliers.
        ahead: lines of 128 bytes of each output that are asked for before the wait.
    """

    outputs: int
    depth: int
    warps: int
    stages: int = 1
    ahead: int = 0


def choose_shape(
    rows: int, width: int, depth: int, gated: bool, item_bytes: int, count: int
) -> Shape:
    """The tile for these sizes on ``count`` processors.

    The best of ``bench.gpu_kernels --sweep`` on an H200. A single row's step is 4 to 16 KiB of
    weights in the registers of two or three programs per processor; several rows stage theirs
    in shared memory.
    """
    deepest = 1 << max(4, (depth - 1).bit_length())
    if rows > 1:
        tile = Shape(16, 64 if item_bytes == 4 else 256 if gated else 512, 2, 4, ahead=8)
    elif gated:
        tile = Shape(4, 512 if depth <= 1024 else 1024, 4)
    elif width > 64 * count:
        tile = Shape(8, 1024, 4)
    elif depth <= 1024:
        tile = Shape(16, 512, 4)
    elif width <= 16 * count:
        tile = Shape(4, 2048, 4)
    elif width <= 40 * count:
        tile = Shape(8, 1024, 8)
    else:
        tile = Shape(16, 512, 8)
    return replace(tile, depth=min(tile.depth, deepest))


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
            rows, width, depth, activation is not None, x.element_size(), processors(x.device)
        )
    if shape.stages > 1 and norm_weight is not None:
        x, norm_weight = rms_norm(x, norm_weight, eps, plus_one, None), None
    early = early_launch(x.device)
    options = {
        "ACTIVATION": activation or "",
        "BIAS": bias is not None,
        "RESIDUAL": residual is not None,
        "EARLY": early,
        "BLOCK_OUT": shape.outputs,
        "BLOCK_DEPTH": shape.depth,
        "num_warps": shape.warps,
        "launch_pdl": early,
    }
    grid = (triton.cdiv(width, shape.outputs),)
    given_bias = x if bias is None else bias
    given_residual = x if residual is None else residual
    strides = (x.stride(0), given_residual.stride(0), out.stride(0))
    if shape.stages == 1:
        linear_rows[grid](
            x, weight, given_bias, x if norm_weight is None else norm_weight, given_residual,
            out, width, depth, eps, *strides,
            NORM=norm_weight is not None, PLUS_ONE=plus_one, ONCE=depth <= shape.depth,
            ROWS=rows, **options,
        )  # fmt: skip
        return out
    linear_few[grid](
        x, weight, given_bias, given_residual, out, rows, width, depth, *strides,
        WHOLE=depth % shape.depth == 0, ROWS=ROWS, STAGES=shape.stages,
        AHEAD=shape.ahead if early else 0, **options,
    )  # fmt: skip
    return out
