# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportGeneralTypeIssues=false
# Triton declares neither its CUDA extras, nor the options of a launch, nor constexpr arguments, nor
# that a static range can be iterated.
"""Causal convolution on CUDA as an implicit product: windows are never written out.

A tile's inputs come from x or from the context by position, get their ELU in registers, and go
straight to the tensor cores. The next context is written by the same launch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from antiphon_kernels.causal_taps import BLOCK, ROWS
from antiphon_kernels.launch import early_launch

TAIL = 1024
"""Elements of the next context that a program copies at a time."""


@triton.jit
def _active(x, ELU: tl.constexpr):
    """x in fp32, or ELU of it."""
    wide = x.to(tl.float32)
    if ELU:
        wide = tl.where(wide > 0, wide, tl.exp(wide) - 1.0)
    return wide


@triton.jit
def _add_product(acc, a, high, low, place, inside, SPLIT: tl.constexpr):
    """acc + a W for a tile of the weight, in one product or in three of halves."""
    w = tl.load(high + place, inside, other=0.0)
    if SPLIT:
        a_high = a.to(tl.bfloat16)
        a_low = (a - a_high.to(tl.float32)).to(tl.bfloat16)
        w_low = tl.load(low + place, inside, other=0.0)
        acc = tl.dot(a_low, w, acc)
        acc = tl.dot(a_high, w_low, acc)
        return tl.dot(a_high, w, acc)
    return tl.dot(a.to(w.dtype), w, acc)


@triton.jit
def _keep(
    x, old, tail, program, programs, batch, steps, channels, old_row,
    TAPS: tl.constexpr, ELU: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """This program's share of the next context: the last positions of context and x."""
    width = (TAPS - 1) * channels
    for begin in tl.range(program * TAIL, batch * width, programs * TAIL):
        element = begin + tl.arange(0, TAIL)
        row, place = element // width, element % width
        inside = element < batch * width
        from_x = place + steps * channels - width
        new = tl.load(
            x + row.to(tl.int64) * steps * channels + from_x, inside & (from_x >= 0), other=0.0
        )
        kept = tl.load(
            old + row.to(tl.int64) * old_row + place + steps * channels,
            inside & (from_x < 0),
            other=0.0,
        )
        value = tl.where(from_x >= 0, _active(new, ELU), kept.to(tl.float32))
        tl.store(tail + element, value.to(tail.dtype.element_ty), inside)


@triton.jit
def _causal_taps(
    x, old, high, low, bias, added, out, tail, batch, steps, channels, outputs, old_row,
    TAPS: tl.constexpr, ELU: tl.constexpr, SPLIT: tl.constexpr, BIAS: tl.constexpr,
    ADD: tl.constexpr, EARLY: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_OUT: tl.constexpr,
    BLOCK_DEPTH: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """A tile of positions and outputs."""
    output = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    place = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    present = place < batch * steps
    row, step = (place // steps).to(tl.int64), place % steps
    depth = tl.arange(0, BLOCK_DEPTH)
    offered = (output < outputs)[None, :]
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    acc = tl.zeros([BLOCK_ROWS, BLOCK_OUT], dtype=tl.float32)
    for tap in tl.static_range(TAPS):
        position = step + tap - (TAPS - 1)
        in_x = (present & (position >= 0))[:, None]
        in_old = (present & (position < 0))[:, None]
        x_place = x + ((row * steps + position) * channels)[:, None] + depth[None, :]
        old_place = old + (row * old_row + (step + tap) * channels)[:, None] + depth[None, :]
        w_place = (tap * channels + depth)[:, None] * outputs + output[None, :]
        for begin in tl.range(0, channels, BLOCK_DEPTH):
            a = _active(tl.load(x_place + begin, in_x, other=0.0), ELU)
            if tap < TAPS - 1:
                a += tl.load(old_place + begin, in_old, other=0.0).to(tl.float32)
            acc = _add_product(acc, a, high, low, w_place + begin * outputs, offered, SPLIT)
    if BIAS:
        acc += tl.load(bias + output, output < outputs, other=0.0).to(tl.float32)[None, :]
    target = place.to(tl.int64)[:, None] * outputs + output[None, :]
    inside = present[:, None] & offered
    if ADD:
        acc += tl.load(added + target, inside, other=0.0).to(tl.float32)
    tl.store(out + target, acc.to(out.dtype.element_ty), inside)
    if TAPS > 1:
        program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        programs = tl.num_programs(0) * tl.num_programs(1)
        _keep(
            x, old, tail, program, programs, batch, steps, channels, old_row, TAPS, ELU, TAIL
        )  # fmt: skip


def causal_taps(
    x: torch.Tensor,
    old: torch.Tensor,
    weights: tuple[torch.Tensor, ...],
    bias: torch.Tensor | None,
    added: torch.Tensor | None,
    elu: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launches :func:`antiphon_kernels.causal_taps.causal_taps` on x's device."""
    batch, steps, channels = x.shape
    depth, outputs = weights[0].shape
    if channels % BLOCK or not x.is_contiguous() or not (added is None or added.is_contiguous()):
        raise ValueError(
            f"causal_taps: {channels} channels, expected contiguous ones and multiples of {BLOCK}"
        )
    taps = depth // channels
    out = torch.empty(batch, steps, outputs, dtype=x.dtype, device=x.device)
    tail = torch.empty(batch, (taps - 1) * channels, dtype=x.dtype, device=x.device)
    block_out = 64 if outputs > 32 else 32
    early = early_launch(x.device)
    _causal_taps[(triton.cdiv(outputs, block_out), triton.cdiv(batch * steps, ROWS))](
        x, old, weights[0], weights[-1], bias, added, out, tail,
        batch, steps, channels, outputs, old.stride(0),
        TAPS=taps, ELU=elu, SPLIT=len(weights) > 1, BIAS=bias is not None, ADD=added is not None,
        EARLY=early, BLOCK_ROWS=ROWS, BLOCK_OUT=block_out,
        BLOCK_DEPTH=BLOCK if channels % (2 * BLOCK) or x.dtype == torch.float32 else 2 * BLOCK,
        TAIL=TAIL, num_warps=4, num_stages=3, launch_pdl=early,
    )  # fmt: skip
    return out, tail
