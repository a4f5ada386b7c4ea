"""Shapes for tests and benchmarks of RMS normalisation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One call: ``rows`` x ``heads`` x ``dim``; heads 0 means a 2-D input."""

    rows: int
    heads: int
    dim: int
    plus_one: bool = False
    eps: float = 1e-6

    def __str__(self) -> str:
        return f"{self.rows}x{self.heads}x{self.dim}{'+1' if self.plus_one else ''}"


CASES = (
    Case(1, 0, 576, eps=1e-5),
    Case(3, 0, 640, plus_one=True),
    Case(7, 4, 256, plus_one=True),
    Case(2, 3, 20),
    Case(33, 0, 7),
    Case(257, 0, 1),
    Case(65, 5, 129),
)
