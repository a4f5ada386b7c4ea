"""Shapes for tests and benchmarks of residual quantisation."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Case:
    """One call: ``rows`` latents of ``dim`` against ``levels`` books of ``size`` entries."""

    rows: int
    levels: int
    size: int
    dim: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.dim}-{self.levels}x{self.size}"


CASES = (
    Case(1, 4, 16, 16),
    Case(3, 3, 15, 24),
    Case(19, 2, 12, 16),
)

MIMI = tuple(Case(rows, 31, 2048, 256) for rows in (1, 16, 64, 256))
"""kyutai/mimi's acoustic books, rows of a step."""


def build(case: Case, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(latents, books, norms); later books are finer."""
    draw = torch.Generator().manual_seed(case.rows)
    scales = 0.8 ** torch.arange(case.levels)[:, None, None]
    books = torch.randn(case.levels, case.size, case.dim, generator=draw) * scales
    latents = torch.randn(case.rows, case.dim, generator=draw) * 1.5
    return latents.to(device), books.to(device), books.square().sum(dim=2).to(device)
