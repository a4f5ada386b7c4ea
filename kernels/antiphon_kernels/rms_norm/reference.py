"""RMS normalisation in plain torch: the definition that kernels are tested against."""

from __future__ import annotations

import torch


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    plus_one: bool = False,
) -> torch.Tensor:
    """Normalises the last axis: ``x / sqrt(mean(x^2) + eps) * weight``, statistics in fp32.

    Args:
        x: (..., D), any float dtype.
        weight: (D), any float dtype.
        eps: added to the mean square.
        plus_one: scale by ``1 + weight``, the convention of the Gemma 1-3 checkpoints.

    Returns:
        (..., D) of x's dtype.
    """
    wide = x.float()
    scale = weight.float() + 1.0 if plus_one else weight.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed * scale).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    plus_one: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds x to the residual stream and normalises the sum.

    Args:
        x, residual: (N, D), one dtype.
        weight, eps, plus_one: as for :func:`rms_norm`.

    Returns:
        (normed, x + residual), both (N, D).
    """
    total = x + residual
    return rms_norm(total, weight, eps, plus_one=plus_one), total
