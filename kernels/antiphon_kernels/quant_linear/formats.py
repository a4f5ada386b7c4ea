"""Weight formats: GGUF block bytes to integer codes with fp scales, exactly.

Every quantised format here is ``weight = scale * code + minimum`` with a scale (and for some
a minimum) per group of 16 or 32 elements along the input dimension. ``scale * code`` of all
of them but Q6_K is exact in fp32, so a fused multiply-add and a multiplication followed by an
addition give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Format:
    """One weight format.

    Attributes:
        kind: the GGML name.
        block, block_bytes: elements and bytes of one block of the file.
        bits: bits of a code in memory: 4, 5 or 8; 16 and 32 are plain floats.
        group: elements that share a scale; 0 for plain floats.
        centre: subtracted from an unsigned code (the minimum is then ``-centre * scale``).
        has_min: a minimum is stored beside each scale.
        scale_dtype: float16 where the file's own scale is kept, float32 where it is a product.
    """

    kind: str
    block: int
    block_bytes: int
    bits: int
    group: int = 0
    centre: int = 0
    has_min: bool = False
    scale_dtype: torch.dtype = torch.float16


FORMATS = {
    entry.kind: entry
    for entry in (
        Format("F32", 1, 4, 32),
        Format("F16", 1, 2, 16),
        Format("BF16", 1, 2, 16),
        Format("Q4_0", 32, 18, 4, group=32, centre=8),
        Format("Q4_1", 32, 20, 4, group=32, has_min=True),
        Format("Q5_0", 32, 22, 5, group=32, centre=16),
        Format("Q5_1", 32, 24, 5, group=32, has_min=True),
        Format("Q8_0", 32, 34, 8, group=32),
        Format("Q4_K", 256, 144, 4, group=32, has_min=True, scale_dtype=torch.float32),
        Format("Q5_K", 256, 176, 5, group=32, has_min=True, scale_dtype=torch.float32),
        Format("Q6_K", 256, 210, 8, group=16, scale_dtype=torch.float32),
    )
}
FLOAT_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Codes:
    """A weight matrix as codes (N, K) uint8 or int8, scales and minimums (N, K / group)."""

    codes: torch.Tensor
    scales: torch.Tensor
    mins: torch.Tensor | None


def format_of(kind: str) -> Format:
    """The format called ``kind``; an unknown name lists the known ones."""
    try:
        return FORMATS[kind]
    except KeyError:
        known = ", ".join(FORMATS)
        raise ValueError(f"unknown weight format {kind!r}, expected one of {known}") from None


def unpack(kind: str, data: torch.Tensor) -> Codes:
    """Splits the blocks of a quantised format.

    Args:
        kind: a format with scales.
        data: (N, bytes per row) uint8, whole blocks along the input dimension.
    """
    entry = format_of(kind)
    blocks = data.reshape(data.shape[0], -1, entry.block_bytes)
    rows = data.shape[0]
    codes, scales, mins = _UNPACKERS[kind](blocks)
    return Codes(
        codes.reshape(rows, -1),
        scales.reshape(rows, -1),
        None if mins is None else mins.reshape(rows, -1),
    )


def _half(part: torch.Tensor) -> torch.Tensor:
    """(..., 2) bytes to (...) float16."""
    return part.contiguous().view(torch.float16).squeeze(-1)


def _nibbles(part: torch.Tensor) -> torch.Tensor:
    """(..., n) bytes to (..., 2n) codes: all low nibbles, then all high ones."""
    return torch.cat((part & 0xF, part >> 4), dim=-1)


def _bit_planes(part: torch.Tensor) -> torch.Tensor:
    """(..., 4) bytes of a little-endian mask to (..., 32) zeros and ones."""
    shifts = torch.arange(8, dtype=torch.uint8, device=part.device)
    return ((part.unsqueeze(-1) >> shifts) & 1).flatten(-2)


_Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def _q4_0(blocks: torch.Tensor) -> _Parts:
    return _nibbles(blocks[..., 2:]), _half(blocks[..., :2]), None


def _q4_1(blocks: torch.Tensor) -> _Parts:
    return _nibbles(blocks[..., 4:]), _half(blocks[..., :2]), _half(blocks[..., 2:4])


def _q5_0(blocks: torch.Tensor) -> _Parts:
    codes = _nibbles(blocks[..., 6:]) | (_bit_planes(blocks[..., 2:6]) << 4)
    return codes, _half(blocks[..., :2]), None


def _q5_1(blocks: torch.Tensor) -> _Parts:
    codes = _nibbles(blocks[..., 8:]) | (_bit_planes(blocks[..., 4:8]) << 4)
    return codes, _half(blocks[..., :2]), _half(blocks[..., 2:4])


def _q8_0(blocks: torch.Tensor) -> _Parts:
    return blocks[..., 2:].contiguous().view(torch.int8), _half(blocks[..., :2]), None


def _k_scales(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and minimums (..., 8) fp32 of the eight sub-blocks of Q4_K and Q5_K."""
    packed = blocks[..., 4:16]
    low, middle, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scale = torch.cat((low & 63, (high & 15) | ((low >> 6) << 4)), dim=-1)
    minimum = torch.cat((middle & 63, (high >> 4) | ((middle >> 6) << 4)), dim=-1)
    d = _half(blocks[..., :2]).float().unsqueeze(-1)
    d_min = _half(blocks[..., 2:4]).float().unsqueeze(-1)
    return d * scale.float(), -(d_min * minimum.float())


def _q4_k(blocks: torch.Tensor) -> _Parts:
    scales, mins = _k_scales(blocks)
    codes = _nibbles(blocks[..., 16:].unflatten(-1, (4, 32)))
    return codes, scales, mins


def _q5_k(blocks: torch.Tensor) -> _Parts:
    scales, mins = _k_scales(blocks)
    codes = _nibbles(blocks[..., 48:].unflatten(-1, (4, 32))).unflatten(-1, (2, 32))
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device).view(4, 2, 1)
    planes = (blocks[..., None, None, 16:48] >> shifts) & 1
    return codes | (planes << 4), scales, mins


def _q6_k(blocks: torch.Tensor) -> _Parts:
    low = _nibbles(blocks[..., :128].unflatten(-1, (2, 64)))
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=blocks.device).view(4, 1)
    high = (blocks[..., 128:192].unflatten(-1, (2, 1, 32)) >> shifts) & 3
    codes = (low | (high.flatten(-2) << 4)).view(torch.int8) - 32
    d = _half(blocks[..., 208:]).float().unsqueeze(-1)
    return codes, d * blocks[..., 192:208].contiguous().view(torch.int8).float(), None


_UNPACKERS = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
