"""Rotary position embedding in the half-rotation (NeoX) layout, in place on q and k."""

from __future__ import annotations

import torch

from antiphon_kernels.rope import reference
from antiphon_kernels.runtime import native_for


def rope(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> None:
    """Rotates q and k in place; pair i is elements i and i + R/2 of the first R of D.

    Args:
        q: (N, Hq, D), k: (N, Hkv, D); views into a fused qkv row are fine.
        positions: (N) int32, each within [0, P).
        cos, sin: (P, R/2) fp32 contiguous, R <= D: the rest of D is not rotated.

    Raises:
        IndexError: on CPU, a position lies outside the tables; nothing was rotated then. On
            CUDA positions are not checked.
    """
    if q.is_cuda:
        from antiphon_kernels.rope import kernel

        kernel.rope(q, k, positions, cos, sin)
        return
    native = native_for("rope", q, k, cos, sin)
    if native is None:
        reference.rope(q, k, positions, cos, sin)
    else:
        native.rope(q, k, positions, cos, sin)
