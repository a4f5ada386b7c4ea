"""A linear layer over a dense weight with its neighbours folded in, in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from antiphon_kernels.rms_norm.reference import rms_norm


def small_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    norm_weight: torch.Tensor | None = None,
    eps: float = 0.0,
    plus_one: bool = False,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """``residual + act(norm(x) @ weight.T + bias)`` in fp32, nothing rounded in between.

    Args:
        x: (M, K).
        weight: (N, K).
        bias: (N) or None.
        norm_weight: (K); x is RMS-normalised first, see :func:`rms_norm` for eps and plus_one.
        activation: None, or "silu" or "gelu_tanh": the first N/2 outputs are gates, the others
            what they open, and the result is ``act(gate) * up``.
        residual: (M, N), or (M, N/2) with an activation; added last.

    Returns:
        (M, N), or (M, N/2) with an activation, fp32.
    """
    wide = x.float()
    if norm_weight is not None:
        wide = rms_norm(wide, norm_weight, eps, plus_one=plus_one)
    y = wide @ weight.float().T
    if bias is not None:
        y = y + bias.float()
    if activation is not None:
        gate, up = y.chunk(2, dim=1)
        opened = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
        y = opened * up
    return y if residual is None else y + residual.float()
