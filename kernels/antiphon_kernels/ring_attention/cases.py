"""Shapes for tests and benchmarks of ring attention."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Case:
    """One call: ``batch`` rows of ``steps`` positions; ``seen`` is what the first has seen."""

    batch: int
    steps: int
    heads: int
    dim: int
    window: int
    seen: int

    def __str__(self) -> str:
        return f"{self.batch}x{self.steps}-{self.heads}x{self.dim}-w{self.window}-at{self.seen}"


CASES = (
    Case(1, 1, 2, 16, 13, 0),
    Case(3, 2, 2, 8, 21, 5),
    Case(2, 3, 1, 16, 40, 200),
    Case(2, 8, 2, 16, 24, 19),
)

MIMI = tuple(
    Case(batch, steps, 8, 64, 250, 1000) for batch in (1, 16, 64, 256) for steps in (2, 4, 8)
)


@dataclass(frozen=True)
class Inputs:
    """Arguments of a call, in its order."""

    qkv: torch.Tensor
    turns: torch.Tensor
    ring: torch.Tensor
    before: torch.Tensor
    targets: torch.Tensor
    window: int


def build(case: Case, device: torch.device, dtype: torch.dtype = torch.float32) -> Inputs:
    """Rows in slots of reverse order, each three positions further than the one before."""
    draw = torch.Generator().manual_seed(case.seen)
    capacity = -(-(case.window + case.steps - 1) // 8) * 8
    sizes = (case.heads, case.dim)
    qkv = torch.randn(case.batch, case.steps, 3, *sizes, generator=draw)
    ring = torch.randn(case.batch + 1, capacity, 2, *sizes, generator=draw)
    before = case.seen + 3 * torch.arange(case.batch)
    angles = torch.rand(case.batch, case.steps, case.dim // 2, generator=draw) * 2 * math.pi
    turns = torch.stack([angles.cos(), angles.sin()], dim=-1)
    targets = torch.arange(case.batch - 1, -1, -1)
    return Inputs(
        qkv.to(device, dtype),
        turns.to(device),
        ring.to(device, dtype),
        before.to(device),
        targets.to(device),
        case.window,
    )
