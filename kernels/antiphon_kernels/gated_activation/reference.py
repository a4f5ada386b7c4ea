"""Gated activations of feed-forward blocks, in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` for gate and up of one shape (N, I)."""
    return F.silu(gate) * up


def gelu_tanh_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """``gelu(gate) * up`` with the tanh approximation, gate and up of one shape (N, I)."""
    return F.gelu(gate, approximate="tanh") * up
