# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportGeneralTypeIssues=false
# Triton declares neither its CUDA extras, nor the options of a launch, nor constexpr arguments, nor
# that a static range can be iterated.
"""Low-rank additions on CUDA: two launches, one program row for each adapter of the step.

Rows of all adapters share the launches. A program takes one active adapter and a tile of rows,
reads that adapter's matrices once and leaves the rows of others alone, so the traffic is that of
the active adapters and of their own rows. The first launch shrinks rows to their rank, cut along
the depth so that it fills the device; the second sums the cuts in a fixed order and expands.

What does not depend on the launch before is read before the wait for it: slots, which were staged
before the step, and the adapters' matrices, which nothing writes while steps run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from antiphon_kernels.launch import early_launch

if TYPE_CHECKING:
    from antiphon_kernels.lora.banks import DeviceBank

RANK = 16
"""Ranks of a tile: a tensor-core product's shortest side."""
ROWS = 64
"""Rows of a tile, whatever their number: a row's sums never depend on it, and the rows of others
cost no traffic."""
CUT = 512
"""Depth of a cut, at least."""
MOST_CUTS = 16
OUTPUTS = 256
PARTS = 3
"""Most parts of a projection."""


@triton.jit(do_not_specialize=["rows"])
def _shrink(
    x, a, ranks, slots, active, partial, rows, x_row,
    DEPTH: tl.constexpr, PARTS: tl.constexpr, RANKS: tl.constexpr, SPAN: tl.constexpr,
    EARLY: tl.constexpr, ROWS: tl.constexpr, RANK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """ROWS rows of one adapter to RANK ranks of one part, over one cut of the depth."""
    place = tl.program_id(0)
    blocks: tl.constexpr = (RANKS + RANK - 1) // RANK
    rank = place % blocks * RANK + tl.arange(0, RANK)
    part = place // blocks % PARTS
    row = place // (blocks * PARTS) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(active + tl.program_id(1)).to(tl.int64)
    own = (tl.load(slots + row, row < rows, other=0) == slot) & (slot > 0)
    live = tl.sum(own.to(tl.int32), axis=0) > 0
    if blocks > 1:
        live = live & (place % blocks * RANK < tl.load(ranks + slot))
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if live:
        cut = tl.program_id(2)
        acc = tl.zeros([ROWS, RANK], dtype=tl.float32)
        from_rows = x + row.to(tl.int64)[:, None] * x_row
        from_a = a + ((slot * PARTS + part) * RANKS + rank)[:, None] * DEPTH
        for begin in range(0, SPAN, STEP):
            step = cut * SPAN + begin + tl.arange(0, STEP)
            inside = (step < DEPTH)[None, :]
            values = tl.load(from_rows + step[None, :], own[:, None] & inside, other=0.0)
            weights = tl.load(from_a + step[None, :], (rank < RANKS)[:, None] & inside, other=0.0)
            acc = tl.dot(values, tl.trans(weights), acc, input_precision="ieee")
        to = partial + (cut * rows + row).to(tl.int64)[:, None] * (PARTS * RANKS)
        tl.store(to + (part * RANKS + rank)[None, :], acc, own[:, None] & (rank < RANKS)[None, :])


@triton.jit
def _part_of(
    tile, first_tiles, second_tiles, second_begin, third_begin, outputs,
    PARTS: tl.constexpr,
):  # fmt: skip
    """The part that a tile of outputs lies in: its number, its tile, its first output and end."""
    part = 0
    begin = 0
    end = outputs
    if PARTS > 1:
        in_second = tile >= first_tiles
        part = in_second.to(tl.int32)
        begin = tl.where(in_second, second_begin, 0)
        end = tl.where(in_second, outputs, second_begin)
        tile -= tl.where(in_second, first_tiles, 0)
        if PARTS > 2:
            in_third = in_second & (tile >= second_tiles)
            part += in_third.to(tl.int32)
            begin = tl.where(in_third, third_begin, begin)
            end = tl.where(in_second & (in_third == 0), third_begin, end)
            tile -= tl.where(in_third, second_tiles, 0)
    return part, tile, begin, end


@triton.jit
def _summed(partial, row, rank, rows, own, WIDTH: tl.constexpr, CUTS: tl.constexpr, known):
    """The rows' ranks over all cuts, in their order."""
    at = partial + row.to(tl.int64)[:, None] * WIDTH + rank[None, :]
    mask = own[:, None] & known[None, :]
    hidden = tl.load(at, mask, other=0.0)
    for cut in tl.static_range(1, CUTS):
        hidden += tl.load(at + tl.cast(cut * rows, tl.int64) * WIDTH, mask, other=0.0)
    return hidden


@triton.jit(do_not_specialize=["rows"])
def _expand(
    partial, b, ranks, slots, active, out, rows, out_row,
    first_tiles, second_tiles, second_begin, third_begin, outputs,
    PARTS: tl.constexpr, RANKS: tl.constexpr, CUTS: tl.constexpr,
    EARLY: tl.constexpr, ROWS: tl.constexpr, RANK: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Adds OUTPUTS outputs of one part to ROWS rows of one adapter."""
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(active + tl.program_id(1)).to(tl.int64)
    own = (tl.load(slots + row, row < rows, other=0) == slot) & (slot > 0)
    live = tl.sum(own.to(tl.int32), axis=0) > 0
    part, tile, begin, end = _part_of(
        tl.program_id(0), first_tiles, second_tiles, second_begin, third_begin, outputs, PARTS
    )
    output = begin + tile * OUTPUTS + tl.arange(0, OUTPUTS)
    inside = (output < end)[None, :]
    rank = tl.arange(0, RANK)
    from_b = b + (slot * RANKS + rank)[:, None] * outputs + output[None, :]
    weights = tl.load(from_b, (rank < RANKS)[:, None] & inside & live, other=0.0)
    held = RANK
    if RANKS > RANK:
        held = tl.load(ranks + slot)
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if live:
        to = out + row.to(tl.int64)[:, None] * out_row + output[None, :]
        mask = own[:, None] & inside
        before = tl.load(to, mask, other=0.0)
        hidden = _summed(
            partial, row, part * RANKS + rank, rows, own, PARTS * RANKS, CUTS, rank < RANKS
        )
        acc = tl.dot(hidden.to(weights.dtype), weights, input_precision="ieee")
        if RANKS > RANK:
            for first in range(RANK, held, RANK):
                rank = first + tl.arange(0, RANK)
                known = rank < RANKS
                from_b = b + (slot * RANKS + rank)[:, None] * outputs + output[None, :]
                weights = tl.load(from_b, known[:, None] & inside, other=0.0)
                hidden = _summed(
                    partial, row, part * RANKS + rank, rows, own, PARTS * RANKS, CUTS, known
                )
                acc = tl.dot(hidden.to(weights.dtype), weights, acc, input_precision="ieee")
        tl.store(to, (before.to(tl.float32) + acc).to(out.dtype.element_ty), mask)


def lora(
    x: torch.Tensor,
    bank: DeviceBank,
    slots: torch.Tensor,
    active: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Launches :func:`antiphon_kernels.lora.lora`; slots are not checked.

    The sizes of tiles depend on the projection alone: a row is summed in one order whatever its
    company.
    """
    rows, depth = x.shape
    if not rows or not active.shape[0]:
        return
    if x.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError("lora: the last axis of x and out must be contiguous")
    parts, ranks = len(bank.sizes), bank.rank
    if parts > PARTS:
        raise ValueError(f"lora: {parts} parts, at most {PARTS}")
    cuts = max(1, min(MOST_CUTS, depth // CUT))
    step = 128 if x.element_size() == 2 else 64
    span = triton.cdiv(triton.cdiv(depth, cuts), step) * step
    tiles = triton.cdiv(rows, ROWS)
    partial = torch.empty((cuts, rows, parts * ranks), dtype=torch.float32, device=x.device)
    early = early_launch(x.device)
    _shrink[(tiles * parts * triton.cdiv(ranks, RANK), active.shape[0], cuts)](
        x, bank.a, bank.ranks, slots, active, partial, rows, x.stride(0),
        DEPTH=depth, PARTS=parts, RANKS=ranks, SPAN=span, EARLY=early, ROWS=ROWS, RANK=RANK,
        STEP=step, num_warps=4, launch_pdl=early,
    )  # fmt: skip
    counts = [triton.cdiv(size, OUTPUTS) for size in bank.sizes]
    begins = [sum(bank.sizes[:part]) for part in range(PARTS)]
    _expand[(sum(counts), active.shape[0], tiles)](
        partial, bank.b, bank.ranks, slots, active, out, rows, out.stride(0),
        counts[0], counts[1] if parts > 1 else 0, begins[1], begins[2], sum(bank.sizes),
        PARTS=parts, RANKS=ranks, CUTS=cuts, EARLY=early, ROWS=ROWS, RANK=RANK, OUTPUTS=OUTPUTS,
        num_warps=8, launch_pdl=early,
    )  # fmt: skip
