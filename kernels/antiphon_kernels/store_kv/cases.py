"""Shapes for tests of the cache store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """N rows into a cache of ``slots`` slots."""

    rows: int
    kv_heads: int
    head_dim: int
    slots: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.kv_heads}x{self.head_dim}-of-{self.slots}"


CASES = (Case(1, 3, 64, 32), Case(5, 1, 256, 64), Case(17, 2, 20, 48), Case(64, 3, 64, 64))
