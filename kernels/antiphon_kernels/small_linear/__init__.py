"""A linear layer of few rows over a dense weight: one read of the weight and nothing else.

At a handful of rows a product costs what reading its weight costs, so its neighbours in the
block (the norm before it, the gate or the residual addition after it) run inside it.
"""

from __future__ import annotations

import torch

from antiphon_kernels.small_linear import reference

MAX_ROWS = 16
"""Rows of x that the CUDA kernel takes; above it a tensor-core product is as cheap."""

ACTIVATIONS = ("silu", "gelu_tanh")

FEW_OUTPUTS = 4096
"""Outputs up to which tiles of several rows are faster than a vendor's product."""

FEWER_ROWS, MORE_OUTPUTS = 8, 6144
"""And up to which they are at fewer rows, a norm included."""


def fuses(rows: int, outputs: int, *, norm: bool = False, activation: bool = False) -> bool:
    """Whether one call of :func:`small_linear` beats a vendor's product and separate kernels.

    Measured on an H200 (bench/gpu_kernels.py, bench/gpu_verify.py). One row: always, a head
    included. Several rows: only the bare product, with a residual or a bias; where they are few,
    with the launch of a norm before it.
    """
    if rows == 1:
        return True
    if activation:
        return False
    if rows <= FEWER_ROWS:
        return outputs <= MORE_OUTPUTS
    return rows <= MAX_ROWS and outputs <= FEW_OUTPUTS and not norm


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
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``residual + act(norm(x) @ weight.T + bias)``, accumulated in fp32.

    A row's bits do not depend on the other rows' contents. On CUDA the launch may be captured
    in a graph and reads the weight ahead of the launches before it, so no queued work may
    write the weight.

    Args:
        x: (M, K), last axis contiguous; M at most ``MAX_ROWS`` on CUDA.
        weight: (N, K) contiguous, x's dtype.
        bias: (N) or None.
        norm_weight: (K); RMS-normalises x first, with ``eps`` and ``plus_one`` as in
            :func:`antiphon_kernels.rms_norm.rms_norm`.
        activation: None, or "silu" or "gelu_tanh" over a stacked weight: outputs [0, N/2) are
            gates, [N/2, N) what they open, and the result is ``act(gate) * up``.
        residual: (M, N), or (M, N/2) with an activation; added last.
        out: written and returned; its dtype may differ from x's (fp32 logits of a head). It
            may be the residual's own memory, never x's. A new tensor of x's dtype by default.

    Returns:
        (M, N), or (M, N/2) with an activation.

    Raises:
        ValueError: shapes disagree, the activation is unknown, or too many rows on CUDA.
    """
    check(x, weight, bias, norm_weight, activation, residual, out)
    if x.is_cuda:
        from antiphon_kernels.small_linear import kernel

        return kernel.small_linear(
            x, weight, bias, norm_weight, eps, plus_one, activation, residual, out
        )
    y = reference.small_linear(
        x,
        weight,
        bias,
        norm_weight=norm_weight,
        eps=eps,
        plus_one=plus_one,
        activation=activation,
        residual=residual,
    )
    return y.to(x.dtype) if out is None else out.copy_(y)


def check(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    activation: str | None,
    residual: torch.Tensor | None,
    out: torch.Tensor | None,
) -> None:
    """Raises ValueError when the arguments do not fit together."""
    outputs, depth = weight.shape
    if activation is not None:
        if activation not in ACTIVATIONS:
            raise ValueError(f"small_linear: activation {activation!r} is none of {ACTIVATIONS}")
        if outputs % 2:
            raise ValueError(f"small_linear: {outputs} outputs are no gates and ups")
    width = outputs // 2 if activation else outputs
    expected = {
        "x": (x, (x.shape[0], depth)),
        "bias": (bias, (outputs,)),
        "norm_weight": (norm_weight, (depth,)),
        "residual": (residual, (x.shape[0], width)),
        "out": (out, (x.shape[0], width)),
    }
    for name, (tensor, shape) in expected.items():
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"small_linear: {name} is {tuple(tensor.shape)}, expected {shape}")
