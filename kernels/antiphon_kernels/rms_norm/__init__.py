"""RMS normalisation over the last axis, alone or fused with the residual addition."""

from __future__ import annotations

import torch

from antiphon_kernels.rms_norm import reference
from antiphon_kernels.runtime import native_for


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    plus_one: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Normalises the last axis of x, with fp32 statistics.

    Args:
        x: (N, D) or (N, H, D) whose last axis is contiguous; a view into a wider row is fine.
        weight: (D).
        eps: added to the mean square.
        plus_one: scale by ``1 + weight``.
        out: where to write, shaped and strided freely like x; x itself is allowed.

    Returns:
        out, or a new contiguous tensor of x's shape and dtype.
    """
    if x.is_cuda:
        from antiphon_kernels.rms_norm import kernel

        return kernel.rms_norm(x, weight, eps, plus_one, out)
    native = native_for("rms_norm", x, weight)
    if native is None:
        normed = reference.rms_norm(x, weight, eps, plus_one=plus_one)
        return normed if out is None else out.copy_(normed)
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype)
    native.rms_norm(x, weight, eps, plus_one, out)
    return out


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    plus_one: bool = False,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (normed, sum) of ``sum = x + residual``.

    Args:
        x, residual: (N, D).
        weight, eps, plus_one: as for :func:`rms_norm`.
        out: (normed, sum), each (N, D) contiguous, written and returned; the sum may be the
            residual's own memory. New tensors by default.
    """
    if x.is_cuda:
        from antiphon_kernels.rms_norm import kernel

        return kernel.add_rms_norm(x, residual, weight, eps, plus_one, out)
    native = native_for("add_rms_norm", x, residual, weight)
    if native is None:
        result = reference.add_rms_norm(x, residual, weight, eps, plus_one=plus_one)
        return result if out is None else (out[0].copy_(result[0]), out[1].copy_(result[1]))
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype), torch.empty(x.shape, dtype=x.dtype)
    native.add_rms_norm(x, residual, weight, eps, plus_one, *out)
    return out
