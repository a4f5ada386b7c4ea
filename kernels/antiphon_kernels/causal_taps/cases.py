"""Shapes for tests and benchmarks of causal convolutions."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from antiphon_kernels.causal_taps import split


@dataclass(frozen=True)
class Case:
    """One call: ``batch`` rows of ``steps`` positions."""

    batch: int
    steps: int
    channels: int
    outputs: int
    taps: int
    elu: bool = True
    bias: bool = True
    added: bool = False

    def __str__(self) -> str:
        marks = "".join("eba"[i] for i, on in enumerate((self.elu, self.bias, self.added)) if on)
        return f"{self.batch}x{self.steps}-{self.taps}x{self.channels}-{self.outputs}{marks}"


CASES = (
    Case(2, 40, 64, 32, 3),
    Case(3, 7, 32, 64, 1, added=True),
    Case(5, 1, 64, 96, 3, elu=False, bias=False),
    Case(2, 2, 96, 32, 2, bias=False),
)

MIMI = tuple(
    case
    for batch in (16, 64)
    for case in (
        Case(batch, 1920, 64, 32, 3),
        Case(batch, 1920, 32, 64, 1, added=True),
        Case(batch, 480, 256, 128, 2),
        Case(batch, 96, 640, 256, 2),
        Case(batch, 16, 1536, 512, 2),
        Case(batch, 16, 512, 256, 3),
    )
)
"""Convolutions of kyutai/mimi's encoder."""


@dataclass(frozen=True)
class Inputs:
    """Arguments of a call, and the weight in one piece."""

    x: torch.Tensor
    old: torch.Tensor
    weights: tuple[torch.Tensor, ...]
    bias: torch.Tensor | None
    added: torch.Tensor | None
    weight: torch.Tensor


def build(case: Case, device: torch.device, dtype: torch.dtype) -> Inputs:
    """Random inputs; fp32 activations meet a split weight."""
    draw = torch.Generator().manual_seed(case.steps)
    depth = case.taps * case.channels

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw).to(device, dtype)

    weight = random(depth, case.outputs) / depth**0.5
    return Inputs(
        random(case.batch, case.steps, case.channels),
        # A context is a part of a wider row.
        random(case.batch, depth)[:, case.channels :],
        split(weight) if dtype == torch.float32 else (weight,),
        random(case.outputs) if case.bias else None,
        random(case.batch, case.steps, case.outputs) if case.added else None,
        weight,
    )
