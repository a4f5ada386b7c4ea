"""Shapes for tests and benchmarks of linear layers of few rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Case:
    """One call; ``outputs`` counts the rows of the weight, gates and ups included."""

    rows: int
    outputs: int
    depth: int
    norm: bool = False
    plus_one: bool = False
    bias: bool = False
    activation: str | None = None
    residual: bool = False

    def __str__(self) -> str:
        flags = [name for name in ("norm", "plus_one", "bias", "residual") if getattr(self, name)]
        parts = [f"{self.rows}x{self.outputs}x{self.depth}", *flags, self.activation or ""]
        return "-".join(part for part in parts if part)


CASES = (
    Case(1, 48, 256),
    Case(1, 33, 1500, norm=True, bias=True, residual=True),
    Case(1, 38, 40, norm=True, plus_one=True, bias=True, activation="gelu_tanh"),
    Case(3, 40, 300, bias=True),
    Case(16, 33, 64, residual=True),
    Case(5, 64, 512, norm=True),
    Case(2, 20, 70, norm=True, plus_one=True, bias=True, residual=True),
    Case(7, 96, 256, norm=True, activation="silu"),
    Case(4, 38, 130, bias=True, activation="gelu_tanh", residual=True),
)


@dataclass(frozen=True)
class Layer:
    """A projection of a benchmarked model: (outputs, depth) and what is folded into it."""

    name: str
    case: Case


def decoder_layers(hidden: int, query: int, key: int, intermediate: int) -> tuple[Layer, ...]:
    """The products of one decoder layer at one row."""
    return (
        Layer("qkv", Case(1, query + 2 * key, hidden, norm=True)),
        Layer("output", Case(1, hidden, query, residual=True)),
        Layer("gate_up", Case(1, 2 * intermediate, hidden, norm=True, activation="silu")),
        Layer("down", Case(1, hidden, intermediate, residual=True)),
    )


QWEN3_8B = (
    *decoder_layers(4096, 4096, 1024, 12288),
    Layer("head", Case(1, 151936, 4096, norm=True)),
)
QWEN3_06B = (
    *decoder_layers(1024, 2048, 1024, 3072),
    Layer("head", Case(1, 151936, 1024, norm=True)),
)


@dataclass
class Arguments:
    """Tensors of one call, as ``small_linear`` takes them."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    norm_weight: torch.Tensor | None
    residual: torch.Tensor | None


def build(case: Case, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Arguments:
    """Random tensors of a case; products are of the order of 1."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    width = case.outputs // 2 if case.activation else case.outputs
    return Arguments(
        x=rand(case.rows, case.depth).to(dtype),
        weight=(rand(case.outputs, case.depth) * case.depth**-0.5).to(dtype),
        bias=rand(case.outputs) if case.bias else None,
        norm_weight=rand(case.depth) if case.norm else None,
        residual=rand(case.rows, width).to(dtype) if case.residual else None,
    )
