"""Linear layers over packed weights: low-bit codes in memory, fp32 in and out.

A weight is packed once at load (:func:`pack`) and stays in its file's bit width. The native
kernels unpack it in registers or in the first-level cache and accumulate each output strictly
in the order of the input dimension, so row i of a product has the same bits for every number
of rows, tile and thread count.

With :func:`antiphon_kernels.set_products` ``int16`` the activations of a row are rounded to 16 bits
per block of 32 (scale: the largest magnitude over 32512), a group's products are summed as integers
and its sum meets both scales in fp32: :func:`reference.quant_linear_int16` is the definition.
Weights keep their bits in either arithmetic. llama.cpp's Q8_1 activations are the model; the second
byte costs little where memory is the bound, and greedy text stays that of fp32.
"""

from __future__ import annotations

import torch

from antiphon_kernels.quant_linear import reference
from antiphon_kernels.quant_linear.formats import FORMATS, format_of
from antiphon_kernels.quant_linear.packed import PackedWeight, can_stack, pack, stack
from antiphon_kernels.runtime import fall_back, native_for, products

__all__ = [
    "FORMATS",
    "PackedWeight",
    "can_stack",
    "dequantise",
    "format_of",
    "gather_rows",
    "pack",
    "quant_linear",
    "stack",
]


def quant_linear(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``x dequantise(weight)^T + bias``, in the arithmetic that ``set_products`` chose.

    Args:
        x: (M, K) whose rows are contiguous.
        weight: (N, K) packed.
        bias: (N) or None.
        out: (M, N), written and returned; its rows may be slices of wider rows.

    Raises:
        ValueError: shapes disagree.
    """
    rows, columns = weight.shape
    if x.dim() != 2 or x.shape[1] != columns:
        raise ValueError(f"quant_linear: x {tuple(x.shape)} does not fit weight {weight.shape}")
    native = native_for("quant_linear", x)
    if native is None:
        result = reference.quant_linear(x, weight, bias)
        return result if out is None else out.copy_(result)
    if out is None:
        out = torch.empty((x.shape[0], rows))
    elif out.shape != (x.shape[0], rows):
        raise ValueError(f"quant_linear: out {tuple(out.shape)}, expected {(x.shape[0], rows)}")
    int16 = products() == "int16"
    if int16 and not weight.format.group:
        fall_back("quant_linear", f"{weight.kind} has no integer codes")
        int16 = False
    native.quant_linear(x, weight, bias, out, int16=int16)
    return out


def gather_rows(
    weight: PackedWeight, ids: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Dequantised rows (M, K) fp32 for ids (M) int32 or int64: the embedding of token ids.

    ``out`` (M, K) contiguous is written and returned; a new tensor by default.

    Raises:
        IndexError: an id lies outside [0, N).
    """
    native = native_for("gather_rows") if weight.codes.device.type == "cpu" else None
    if native is None:
        result = reference.gather_rows(weight, ids)
        return result if out is None else out.copy_(result)
    if out is None:
        out = torch.empty((ids.shape[0], weight.shape[1]))
    native.gather_rows(weight, ids, out)
    return out


def dequantise(weight: PackedWeight) -> torch.Tensor:
    """The whole matrix (N, K) in fp32."""
    return reference.dequantise(weight)
