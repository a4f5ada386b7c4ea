"""The quantised linear in plain torch: dequantise, then multiply; and its int16 arithmetic."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from antiphon_kernels.quant_linear.packed import PackedWeight, unpack_codes

BLOCK = 32
"""Activations that are rounded together."""
LARGEST_CODE = 32512.0
"""Its high byte is 127 and its low byte 0: the kernels take a code as two signed bytes."""
_SMALLEST = 2.0**-100
"""Blocks whose largest magnitude is below become zeros: their scale would lose its bits."""


def dequantise(weight: PackedWeight) -> torch.Tensor:
    """The matrix (N, K) in fp32; equal to gguf-py's dequantisation (zeros of either sign)."""
    rows, columns = weight.shape
    values = _values(
        weight, unpack_codes(weight.codes, weight.high_bits, weight.format.bits),
        weight.scales, weight.mins,
    )  # fmt: skip
    return values.transpose(1, 2).reshape(-1, columns)[:rows].contiguous()


def gather_rows(weight: PackedWeight, ids: torch.Tensor) -> torch.Tensor:
    """Rows ``ids`` (M) of the dequantised matrix, (M, K) fp32."""
    panel, lane = ids.long() // 32, ids.long() % 32
    codes, high_bits, scales, mins = (
        None if part is None else part[panel, :, lane].unsqueeze(-1) for part in weight.parts
    )
    assert codes is not None
    codes = unpack_codes(codes, high_bits, weight.format.bits)
    return _values(weight, codes, scales, mins).squeeze(-1)


def quant_linear(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """``x dequantise(weight)^T + bias``: x (M, K), weight (N, K), bias (N), result (M, N).

    The dequantised matrix stays with the weight, since a reference that is the only
    implementation of a machine is called every step.
    """
    if weight.dense is None:
        weight.dense = dequantise(weight)
    return F.linear(x, weight.dense.to(x.dtype), bias)


def round_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations (M, K) fp32 as codes (M, K) int16 and scales (M, K / 32) fp32.

    The scale of a block is its largest magnitude over LARGEST_CODE. A block that is not finite
    has the scale NaN and zero codes, so that every product with it is NaN.
    """
    blocks = x.unflatten(1, (-1, BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True)
    finite = blocks.isfinite().all(-1, keepdim=True)
    usable = finite & (largest >= _SMALLEST)
    codes = torch.where(usable, blocks * (LARGEST_CODE / largest), 0.0).round().to(torch.int16)
    scales = torch.where(usable, largest / LARGEST_CODE, torch.where(finite, 0.0, float("nan")))
    return codes.flatten(1), scales.squeeze(-1)


def quant_linear_int16(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """:func:`quant_linear` of rounded activations, with the integer sums of the kernels.

    For each group of the weight: ``total += (sum of code * x_code) * x_scale * scale``, and
    ``total += (sum of x_code) * x_scale * minimum`` where the format has one. Groups follow
    each other in fp32, each addition fused with its product, here by fp64.
    """
    entry = weight.format
    codes, scales = round_rows(x)
    groups = weight.shape[1] // entry.group
    # Integers in fp64, which holds the sums exactly.
    rounded = codes.double().unflatten(1, (groups, entry.group))
    spread = scales.repeat_interleave(BLOCK // entry.group, dim=1)
    weights = (
        unpack_codes(weight.codes, weight.high_bits, entry.bits).double() - entry.centre
    ).unflatten(1, (groups, entry.group))
    assert weight.scales is not None
    total = torch.zeros(x.shape[0], weight.codes.shape[0] * weight.codes.shape[2])
    for group in range(groups):
        panel = weights[:, group].transpose(1, 2).flatten(0, 1)
        sums = (rounded[:, group] @ panel.T).float() * spread[:, group, None]
        total = _fused(sums, weight.scales[:, group].flatten(), total)
        if weight.mins is not None:
            inputs = rounded[:, group].sum(1, keepdim=True).float() * spread[:, group, None]
            total = _fused(inputs, weight.mins[:, group].flatten(), total)
    total = total[:, : weight.shape[0]]
    return total if bias is None else total + bias


def _fused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """``a b + c`` of fp32 tensors, rounded once (but for a rounding of fp64 at a tie)."""
    return (a.double() * b.double() + c.double()).float()


def _values(
    weight: PackedWeight,
    codes: torch.Tensor,
    scales: torch.Tensor | None,
    mins: torch.Tensor | None,
) -> torch.Tensor:
    """Codes (..., K, lanes) with scales (..., K / group, lanes) to fp32 values."""
    if scales is None:
        return codes.float()
    entry = weight.format
    grouped = codes.unflatten(-2, (-1, entry.group)).float() - entry.centre
    values = grouped * scales.float().unsqueeze(-2)
    if mins is not None:
        values = values + mins.float().unsqueeze(-2)
    return values.flatten(-3, -2)
