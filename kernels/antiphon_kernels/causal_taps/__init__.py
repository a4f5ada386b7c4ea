"""A causal convolution over channels-last activations: ELU, context, product and sum at once."""

from __future__ import annotations

import torch

from antiphon_kernels.causal_taps import reference

BLOCK = 32
"""Channels come in multiples of it."""

ROWS = 64
"""Output positions of a tile."""

LEAST_TILES = 64
"""Tiles of ``ROWS`` x 64 outputs from which one launch beats a vendor's split product."""


def fuses(rows: int, channels: int, outputs: int) -> bool:
    """Whether the CUDA kernel takes a convolution of so many output positions, and pays."""
    tiles = -(-rows // ROWS) * -(-outputs // 64)
    return not channels % BLOCK and not outputs % BLOCK and tiles >= LEAST_TILES


def split(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """An fp32 weight as a bfloat16 and the bfloat16 of what that leaves over: 16 bits."""
    high = weight.to(torch.bfloat16)
    return high, (weight - high.float()).to(torch.bfloat16)


def causal_taps(
    x: torch.Tensor,
    old: torch.Tensor,
    weights: tuple[torch.Tensor, ...],
    bias: torch.Tensor | None,
    added: torch.Tensor | None = None,
    *,
    elu: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``y[t] = bias + added[t] + sum over i of a[t - taps + 1 + i] W[i]`` with a = ELU(x) or x.

    Products are accumulated in fp32. With two weights x is split as they are, and three products
    make up one whose operands have 16 bits of precision.

    Args:
        x: (B, T, channels) contiguous.
        old: (B, (taps - 1) * channels) of x's dtype, last axis contiguous: a before x.
        weights: (taps * channels, outputs), of x's dtype, or the parts of :func:`split` beside
            fp32 activations; contiguous.
        bias: (outputs) or None.
        added: (B, T, outputs) contiguous, or None.
        elu: apply ELU to x; ``old`` has it already.

    Returns:
        y (B, T, outputs) of x's dtype, and the context (B, (taps - 1) * channels) of the next
        call.

    Raises:
        ValueError: shapes disagree.
    """
    batch, steps, channels = x.shape
    depth, outputs = weights[0].shape
    taps, left = divmod(depth, channels)
    if left or old.shape != (batch, (taps - 1) * channels):
        raise ValueError(
            f"causal_taps: x {tuple(x.shape)} and context {tuple(old.shape)} do not fit a weight "
            f"of {tuple(weights[0].shape)}"
        )
    if added is not None and added.shape != (batch, steps, outputs):
        raise ValueError(
            f"causal_taps: added is {tuple(added.shape)}, expected {(batch, steps, outputs)}"
        )
    if x.is_cuda:
        from antiphon_kernels.causal_taps import kernel

        return kernel.causal_taps(x, old, weights, bias, added, elu)
    return reference.causal_taps(x, old, weights, bias, added, elu=elu)
