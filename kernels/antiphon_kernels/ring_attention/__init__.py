"""Attention of a few new positions a stream over a ring of its last keys and values."""

from __future__ import annotations

import torch

from antiphon_kernels.ring_attention import reference

MAX_STEPS = 8
"""New positions of a row that the CUDA kernel takes."""


def ring_attention(
    qkv: torch.Tensor,
    turns: torch.Tensor,
    ring: torch.Tensor,
    before: torch.Tensor,
    targets: torch.Tensor,
    window: int,
) -> torch.Tensor:
    """Rotates queries and keys, stores keys and values, and attends to the window.

    A position p lies in cell p modulo the capacity. Rows with distinct targets do not see each
    other; of rows with one target (the masked ones) the result is undefined.

    Args:
        qkv: (B, T, 3, heads, dim) contiguous; the two elements of a rotated pair lie side by side.
        turns: (B, T, dim / 2, 2) fp32 contiguous, cosine and sine of each pair's angle.
        ring: (slots, capacity, 2, heads, dim) of qkv's dtype, all but the first axis contiguous;
            capacity at least window + T - 1.
        before: (B) int64, positions that each row has seen.
        targets: (B) int64, each row's slot.
        window: positions that a query sees, its own included.

    Returns:
        (B, T, heads * dim) of qkv's dtype.

    Raises:
        ValueError: the ring is too short, or on CUDA T is beyond ``MAX_STEPS``.
    """
    steps = qkv.shape[1]
    if ring.shape[1] < window + steps - 1:
        raise ValueError(
            f"ring_attention: a ring of {ring.shape[1]} is too short for {steps} positions in a "
            f"window of {window}"
        )
    if qkv.is_cuda:
        from antiphon_kernels.ring_attention import kernel

        return kernel.ring_attention(qkv, turns, ring, before, targets, window)
    return reference.ring_attention(qkv, turns, ring, before, targets, window)
