"""The in-memory layout of a weight: panels of 32 output channels, input dimension inside.

One vector load then yields the same input element of neighbouring output channels, so a
kernel accumulates each output in one lane, strictly in the order of the input dimension,
whatever the number of rows, tiles or threads.

Layout for P = ceil(N / 32) panels (channels past N are zero):

- 4 bits: ``codes`` int32 (P, K/8, 32); element 8i+4h+j has bits 8j+4h to 8j+4h+3 of word i.
- 5 bits: ``codes`` as with 4 bits; ``high_bits`` int32 (P, K/32, 32) has the fifth bits: of 32
  elements, 8i+4h+j has bit 8j+4h+i.
- 8 bits: ``codes`` int32 (P, K/4, 32); byte j of word i is element 4i+j, signed.
- floats: ``codes`` float32, float16 or bfloat16 (P, K, 32).
- ``scales`` and ``mins``: (P, K/group, 32), float16 or float32.

Four elements of one channel thus lie in the bytes of one word, after a mask and a shift where
codes are narrower: what instructions that sum four byte products per lane want.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from antiphon_kernels.quant_linear.formats import FLOAT_DTYPES, Format, format_of, unpack
from antiphon_kernels.runtime import native_for

PANEL = 32
_NIBBLES = [8 * j + 4 * h for h in range(2) for j in range(4)]
_FIFTH_BITS = [place + i for i in range(4) for place in _NIBBLES]


@dataclass(eq=False)
class PackedWeight:
    """A weight matrix (N, K) kept in its file's bit width; see the module for the layout."""

    kind: str
    shape: tuple[int, int]
    codes: torch.Tensor
    high_bits: torch.Tensor | None = None
    scales: torch.Tensor | None = None
    mins: torch.Tensor | None = None
    dense: torch.Tensor | None = field(default=None, repr=False)
    """The fp32 matrix, kept only once a machine without native kernels has needed it."""
    native: Any = field(default=None, repr=False)
    """The record of pointers that the native kernels read, made at the first call."""

    @property
    def format(self) -> Format:
        """The element format."""
        return format_of(self.kind)

    @property
    def parts(self) -> tuple[torch.Tensor | None, ...]:
        """codes, high_bits, scales and mins."""
        return self.codes, self.high_bits, self.scales, self.mins

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        held = (*self.parts, self.dense)
        return sum(part.nbytes for part in held if part is not None)

    def to(self, device: torch.device | str) -> PackedWeight:
        """The same weight on another device."""
        moved = [None if part is None else part.to(device) for part in self.parts]
        codes, high_bits, scales, mins = moved
        assert codes is not None
        return PackedWeight(self.kind, self.shape, codes, high_bits, scales, mins)


def pack(
    data: torch.Tensor, kind: str | None = None, shape: tuple[int, int] | None = None
) -> PackedWeight:
    """Packs a weight matrix.

    Args:
        data: (N, bytes per row) uint8 with the bytes of a GGUF tensor; or a float matrix
            (N, K) of dtype float32, float16 or bfloat16, kept exactly as it is.
        kind: the GGML name of the format; required for bytes, implied by a float dtype.
        shape: (N, K); required for bytes.

    Raises:
        ValueError: unknown format, or a shape that does not match the bytes.
    """
    if data.is_floating_point():
        return _pack_float(data)
    if kind is None or shape is None:
        raise ValueError("packing GGUF bytes needs the format's name and the shape (N, K)")
    entry = format_of(kind)
    rows, columns = shape
    expected = (rows, columns // entry.block * entry.block_bytes)
    if columns % entry.block or tuple(data.shape) != expected:
        raise ValueError(
            f"{kind} weight of shape {shape}: got bytes {tuple(data.shape)}, expected {expected} "
            f"and an input dimension that is a multiple of {entry.block}"
        )
    if kind in FLOAT_DTYPES:
        return _pack_float(data.contiguous().view(FLOAT_DTYPES[kind]))
    native = native_for("pack") if data.device.type == "cpu" else None
    if native is not None:
        weight = _allocate(kind, shape)
        native.pack(data.contiguous(), weight)
        return weight
    parts = unpack(kind, data)
    codes, high_bits = _pack_codes(parts.codes, entry.bits)
    return PackedWeight(
        kind,
        shape,
        codes,
        high_bits,
        _panels(parts.scales),
        None if parts.mins is None else _panels(parts.mins),
    )


def stack(weights: Sequence[PackedWeight]) -> PackedWeight:
    """Joins weights of one format along N, as for a fused q, k, v projection.

    Raises:
        ValueError: formats or input dimensions differ, or a part but the last has an N that
            is no multiple of 32.
    """
    first = weights[0]
    if len(weights) == 1:
        return first
    if not can_stack(weights):
        found = ", ".join(f"{weight.kind} {weight.shape}" for weight in weights)
        raise ValueError(f"weights cannot be stacked: {found}")
    joined: list[torch.Tensor | None] = []
    for column in zip(*(weight.parts for weight in weights), strict=True):
        present = [part for part in column if part is not None]
        joined.append(torch.cat(present) if present else None)
    codes, high_bits, scales, mins = joined
    assert codes is not None
    shape = (sum(weight.shape[0] for weight in weights), first.shape[1])
    return PackedWeight(first.kind, shape, codes, high_bits, scales, mins)


def can_stack(weights: Sequence[PackedWeight]) -> bool:
    """Whether :func:`stack` accepts these weights."""
    first = weights[0]
    return all(
        weight.kind == first.kind and weight.shape[1] == first.shape[1] for weight in weights
    ) and not any(weight.shape[0] % PANEL for weight in weights[:-1])


def unpack_codes(codes: torch.Tensor, high_bits: torch.Tensor | None, bits: int) -> torch.Tensor:
    """(..., packed K, lanes) back to (..., K, lanes), one code or float per element."""
    if bits > 8:
        return codes
    if bits == 8:
        signed = codes.contiguous().view(torch.int8).unflatten(-1, (-1, 4))
        return signed.transpose(-1, -2).flatten(-3, -2)
    low = _fields(codes, _NIBBLES, 0xF)
    if high_bits is None:
        return low
    return low | (_fields(high_bits, _FIFTH_BITS, 1) << 4)


def _fields(words: torch.Tensor, shifts: Sequence[int], mask: int) -> torch.Tensor:
    """Words (..., W, lanes) to their bit fields (..., W * len(shifts), lanes)."""
    places = torch.tensor(shifts, dtype=torch.int32, device=words.device).view(-1, 1)
    return ((words.unsqueeze(-2) >> places) & mask).flatten(-3, -2)


def _words(fields: torch.Tensor, shifts: Sequence[int]) -> torch.Tensor:
    """Small integers (N, K) to panels of words that hold len(shifts) of them each."""
    places = torch.tensor(shifts, dtype=torch.int32, device=fields.device)
    grouped = fields.int().unflatten(1, (-1, len(shifts)))
    return _panels((grouped << places).sum(-1, dtype=torch.int32))


def _pack_float(data: torch.Tensor) -> PackedWeight:
    kinds = {dtype: kind for kind, dtype in FLOAT_DTYPES.items()}
    if data.dim() != 2 or data.dtype not in kinds:
        raise ValueError(
            f"a float weight must be a matrix of {', '.join(map(str, kinds))}, "
            f"got {data.dtype} {tuple(data.shape)}"
        )
    return PackedWeight(kinds[data.dtype], (data.shape[0], data.shape[1]), _panels(data))


def _allocate(kind: str, shape: tuple[int, int]) -> PackedWeight:
    """A packed weight whose contents are still to be written."""
    entry = format_of(kind)
    rows, columns = shape
    panels = -(-rows // PANEL)
    stored = columns // (4 if entry.bits == 8 else 8)
    groups = (panels, columns // entry.group, PANEL)
    return PackedWeight(
        kind,
        shape,
        torch.empty((panels, stored, PANEL), dtype=torch.int32),
        torch.empty((panels, columns // 32, PANEL), dtype=torch.int32) if entry.bits == 5 else None,
        torch.empty(groups, dtype=entry.scale_dtype),
        torch.empty(groups, dtype=entry.scale_dtype) if entry.has_min else None,
    )


def _panels(matrix: torch.Tensor) -> torch.Tensor:
    """(N, C) to (P, C, 32), with zero rows up to a whole panel."""
    padding = -matrix.shape[0] % PANEL
    if padding:
        matrix = F.pad(matrix, (0, 0, 0, padding))
    return matrix.unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()


def _pack_codes(codes: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Codes (N, K) to panels; for 5 bits the fifth ones go to words of their own."""
    if bits == 8:
        return _panels(codes.contiguous().view(torch.int32)), None
    nibbles = _words(codes & 0xF, _NIBBLES)
    return nibbles, None if bits == 4 else _words(codes >> 4, _FIFTH_BITS)
