# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# Triton declares neither its CUDA extras nor the options of a launch.
"""Scatter of step data on CUDA: one program copies one block of one member."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

WORD = 8
"""Bytes moved at a time; what a count leaves over moves byte by byte."""

BLOCK = 512


@triton.jit
def _publish(arena, addresses, WORD: tl.constexpr, BLOCK: tl.constexpr):
    member = tl.program_id(0)
    pair = arena.to(tl.pointer_type(tl.int64)) + 2 * member
    offset = tl.load(pair)
    count = tl.load(pair + 1)
    address = tl.load(addresses + member)
    source = arena + tl.multiple_of(offset, 16)
    target = tl.multiple_of(address, 16)
    words = count // WORD
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < words
    value = tl.load(source.to(tl.pointer_type(tl.int64)) + place, inside)
    tl.store(target.to(tl.pointer_type(tl.int64)) + place, value, inside)
    if tl.program_id(1) == 0:
        rest = words * WORD + tl.arange(0, WORD)
        last = tl.load(source + rest, rest < count)
        tl.store(target.to(tl.pointer_type(tl.uint8)) + rest, last, rest < count)


def publish(arena: torch.Tensor, addresses: torch.Tensor, largest_bytes: int) -> None:
    """Launches :func:`antiphon_kernels.publish.publish` over members of known largest size.

    A normal launch: it may overwrite what the step before still reads, so it must not start
    early.
    """
    if not arena.is_contiguous() or arena.data_ptr() % 16:
        raise ValueError("publish: the arena must be contiguous and aligned to 16 bytes")
    blocks = max(1, triton.cdiv(largest_bytes // WORD, BLOCK))
    _publish[(addresses.shape[0], blocks)](arena, addresses, WORD=WORD, BLOCK=BLOCK, num_warps=4)
