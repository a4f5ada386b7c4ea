"""Weight-only quantised linear in plain torch: dequantise, then multiply in fp32."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from antiphon_kernels.quant_linear.packed import PackedWeight, unpack_codes


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
