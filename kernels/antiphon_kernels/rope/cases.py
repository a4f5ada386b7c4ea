"""Shapes for tests of the rotary embedding."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """``rotary_dim`` of ``head_dim`` elements are rotated."""

    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.heads}+{self.kv_heads}x{self.head_dim}r{self.rotary_dim}"


CASES = (
    Case(1, 9, 3, 64, 64),
    Case(5, 4, 1, 256, 256),
    Case(3, 2, 2, 80, 20),
    Case(130, 3, 1, 20, 10),
    Case(2, 1, 1, 6, 6),
)
