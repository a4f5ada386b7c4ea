# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# Triton declares neither its CUDA extras, nor the options of a launch, nor constexpr arguments.
"""Ring attention on CUDA: a program is a head of a row; the ring is read once, in place.

Queries are few, so products run on plain multipliers in fp32: a tensor core's tile would be
mostly empty, and the time is that of reading the ring.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from antiphon_kernels.launch import early_launch

ELEMENTS = 4096
"""Products of queries and keys that a program has in flight."""


@triton.jit
def _turned(x, cosine, sine, STEPS: tl.constexpr, DIM: tl.constexpr):
    """x (STEPS, DIM), neighbours turned as pairs."""
    even, odd = tl.split(tl.reshape(x.to(tl.float32), [STEPS, DIM // 2, 2]))
    turned = tl.join(even * cosine - odd * sine, even * sine + odd * cosine)
    return tl.reshape(turned, [STEPS, DIM])


@triton.jit
def _ring_attention(
    qkv, turns, ring, before, targets, out, steps, heads, capacity, window, slot_row, scale,
    EARLY: tl.constexpr, STEPS: tl.constexpr, DIM: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """One head of one row."""
    row, head = tl.program_id(0), tl.program_id(1)
    step, column = tl.arange(0, STEPS), tl.arange(0, DIM)
    present = (step < steps)[:, None]
    width = heads * DIM
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    first = tl.load(before + row)
    keys = ring + tl.load(targets + row) * slot_row + head * DIM
    place = row.to(tl.int64) * steps + step
    new = qkv + place[:, None] * 3 * width + head * DIM + column[None, :]
    pair = turns + place[:, None] * DIM + 2 * tl.arange(0, DIM // 2)[None, :]
    cosine = tl.load(pair, present, other=0.0)
    sine = tl.load(pair + 1, present, other=0.0)
    dtype = qkv.dtype.element_ty
    query = _turned(tl.load(new, present, other=0.0), cosine, sine, STEPS, DIM)
    query = query.to(dtype).to(tl.float32)
    key = _turned(tl.load(new + width, present, other=0.0), cosine, sine, STEPS, DIM)
    value = tl.load(new + 2 * width, present, other=0.0)
    cell = keys + ((first + step) % capacity)[:, None] * 2 * width + column[None, :]
    tl.store(cell, key.to(dtype), present)
    tl.store(cell + width, value, present)
    # Threads read what others of this program stored.
    tl.debug_barrier()
    last = first + steps - 1
    position = first + step
    best = tl.full([STEPS], float("-inf"), tl.float32)
    total = tl.zeros([STEPS], tl.float32)
    acc = tl.zeros([STEPS, DIM], tl.float32)
    for begin in tl.range(0, tl.minimum(capacity, last + 1).to(tl.int32), CELLS):
        at = begin + tl.arange(0, CELLS)
        held = last - (last - at + capacity) % capacity
        # A position not seen yet lies before the beginning.
        inside = ((at < capacity) & (held >= 0))[:, None]
        place_at = keys + at[:, None].to(tl.int64) * 2 * width + column[None, :]
        k = tl.load(place_at, inside, other=0.0).to(tl.float32)
        v = tl.load(place_at + width, inside, other=0.0).to(tl.float32)
        age = position[:, None] - held[None, :]
        seen = (age >= 0) & (age < window) & (held >= 0)[None, :] & (at < capacity)[None, :]
        score = tl.sum(query[:, None, :] * k[None, :, :], axis=2) * scale
        score = tl.where(seen, score, float("-inf"))
        top = tl.maximum(best, tl.max(score, axis=1))
        # Before the first cell that a query sees there is nothing to scale.
        base = tl.where(top == float("-inf"), 0.0, top)
        share = tl.exp(score - base[:, None])
        fade = tl.exp(best - base)
        total = total * fade + tl.sum(share, axis=1)
        acc = acc * fade[:, None] + tl.sum(share[:, :, None] * v[None, :, :], axis=1)
        best = top
    result = acc / total[:, None]
    tl.store(out + place[:, None] * width + head * DIM + column[None, :], result.to(dtype), present)


def ring_attention(
    qkv: torch.Tensor,
    turns: torch.Tensor,
    ring: torch.Tensor,
    before: torch.Tensor,
    targets: torch.Tensor,
    window: int,
) -> torch.Tensor:
    """Launches :func:`antiphon_kernels.ring_attention.ring_attention` on the ring's device."""
    batch, steps, _, heads, dim = qkv.shape
    if not (qkv.is_contiguous() and turns.is_contiguous() and ring[0].is_contiguous()):
        raise ValueError("ring_attention: qkv, turns and a slot of the ring must be contiguous")
    block_steps = triton.next_power_of_2(steps)
    if dim & (dim - 1):
        raise ValueError(f"ring_attention: heads of {dim}, expected a power of two")
    out = torch.empty(batch, steps, heads * dim, dtype=qkv.dtype, device=qkv.device)
    early = early_launch(qkv.device)
    _ring_attention[(batch, heads)](
        qkv, turns, ring, before, targets, out, steps, heads, ring.shape[1], window,
        ring.stride(0), dim**-0.5,
        EARLY=early, STEPS=block_steps, DIM=dim, CELLS=max(16, ELEMENTS // (block_steps * dim)),
        num_warps=4, launch_pdl=early,
    )  # fmt: skip
    return out
