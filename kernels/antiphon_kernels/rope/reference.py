"""Rotary position embedding, half-rotation (NeoX) layout, in plain torch."""

from __future__ import annotations

import torch


def rope(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> None:
    """Rotates q and k in place; pair i is elements i and i + R/2 of the first R of D.

    Args:
        q: (N, Hq, D). k: (N, Hkv, D).
        positions: (N) int32 or int64, rows of the tables.
        cos, sin: (P, R/2) fp32 with R <= D; elements R.. of D stay as they are.
    """
    half = cos.shape[1]
    row_cos = cos[positions.long()].unsqueeze(1)
    row_sin = sin[positions.long()].unsqueeze(1)
    for x in (q, k):
        first, second = x[..., :half].float(), x[..., half : 2 * half].float()
        rotated_first = first * row_cos - second * row_sin
        rotated_second = second * row_cos + first * row_sin
        x[..., :half] = rotated_first.to(x.dtype)
        x[..., half : 2 * half] = rotated_second.to(x.dtype)
