"""Gated activations of feed-forward blocks: SwiGLU and GeGLU with tanh."""

from __future__ import annotations

from collections.abc import Callable

import torch

from antiphon_kernels.gated_activation import reference
from antiphon_kernels.runtime import native_for


def silu_mul(
    gate: torch.Tensor, up: torch.Tensor | None = None, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """``silu(gate) * up``.

    Args:
        gate: (N, I); or (N, 2I), gate then up along the row, when ``up`` is None.
        up: (N, I).
        out: (N, I), written and returned; a new tensor by default.
    """
    return _gated("silu_mul", reference.silu_mul, gate, up, out)


def gelu_tanh_mul(
    gate: torch.Tensor, up: torch.Tensor | None = None, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """``gelu(gate) * up`` with the tanh approximation; arguments as for :func:`silu_mul`."""
    return _gated("gelu_tanh_mul", reference.gelu_tanh_mul, gate, up, out)


def _gated(
    operation: str,
    fallback: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    gate: torch.Tensor,
    up: torch.Tensor | None,
    out: torch.Tensor | None,
) -> torch.Tensor:
    if up is None:
        if gate.shape[1] % 2:
            raise ValueError(f"{operation}: a fused row must be even, got {gate.shape[1]}")
        gate, up = gate.chunk(2, dim=1)
    elif up.shape != gate.shape:
        raise ValueError(f"{operation}: gate {tuple(gate.shape)} and up {tuple(up.shape)} differ")
    if gate.is_cuda:
        from antiphon_kernels.gated_activation import kernel

        return kernel.gated_activation(operation.removesuffix("_mul"), gate, up, out)
    native = native_for(operation, gate, up)
    if native is None:
        result = fallback(gate, up)
        return result if out is None else out.copy_(result)
    if out is None:
        out = torch.empty(gate.shape, dtype=gate.dtype)
    native.gated_activation(operation, gate, up, out)
    return out
