"""Shapes for tests of the fused norms, rotation and store."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Case:
    """``rotary_dim`` of ``head_dim`` elements are rotated."""

    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    norm: bool = False
    plus_one: bool = False

    def __str__(self) -> str:
        norm = "-norm" * self.norm + "+1" * self.plus_one
        shape = f"{self.rows}x{self.heads}+{self.kv_heads}x{self.head_dim}"
        return f"{shape}r{self.rotary_dim}{norm}"


CASES = (
    Case(1, 32, 8, 128, 128, norm=True),
    Case(5, 9, 3, 64, 64),
    Case(3, 4, 1, 256, 256, norm=True, plus_one=True),
    Case(4, 6, 2, 80, 20, norm=True),
    Case(2, 3, 3, 96, 96),
)


@dataclass
class Arguments:
    """Tensors of one call; slots of the caches that no row owns hold NaN."""

    qkv: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    positions: torch.Tensor
    write_slot: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    q_weight: torch.Tensor | None
    k_weight: torch.Tensor | None


def build(case: Case, dtype: torch.dtype, seed: int = 0) -> Arguments:
    """Random CPU tensors of a case."""
    generator = torch.Generator().manual_seed(seed)
    slots = 4 * case.rows
    cache = torch.full((slots, case.kv_heads, case.head_dim), float("nan"), dtype=dtype)
    angles = torch.randn(50, case.rotary_dim // 2, generator=generator)
    width = (case.heads + 2 * case.kv_heads) * case.head_dim
    weights = torch.randn(2, case.head_dim, generator=generator)
    return Arguments(
        qkv=(torch.randn(case.rows, width, generator=generator) * 3).to(dtype),
        k_cache=cache,
        v_cache=cache.clone(),
        positions=(torch.arange(case.rows) * 17 % 50).int(),
        write_slot=torch.randperm(slots, generator=generator)[: case.rows],
        cos=angles.cos(),
        sin=angles.sin(),
        q_weight=weights[0] if case.norm else None,
        k_weight=weights[1] if case.norm else None,
    )
