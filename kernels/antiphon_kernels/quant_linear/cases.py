"""Shapes for tests and benchmarks of the quantised linear, and random blocks of each format."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from antiphon_kernels.quant_linear.formats import format_of


@dataclass(frozen=True)
class Shape:
    """A weight matrix (rows N, columns K)."""

    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


SHAPES = (Shape(96, 256), Shape(33, 512), Shape(1, 256), Shape(200, 1280))
FLOAT_SHAPES = (Shape(64, 64), Shape(31, 37), Shape(1, 1), Shape(130, 333))
ROW_COUNTS = (1, 2, 3, 5, 7, 8, 16, 64, 513)


@dataclass(frozen=True)
class ModelShape:
    """One projection of a model and how many layers have it in this format."""

    name: str
    kind: str
    shape: Shape
    layers: int = 1


SMOLLM2 = (
    ModelShape("qkv", "Q4_1", Shape(960, 576), 30),
    ModelShape("o", "Q4_1", Shape(576, 576), 30),
    ModelShape("gate_up", "Q4_1", Shape(3072, 576), 30),
    ModelShape("down", "Q4_1", Shape(576, 1536), 30),
    ModelShape("lm_head", "Q8_0", Shape(49152, 576)),
)
"""SmolLM2-135M-Instruct Q4_1."""
GEMMA3_270M = (
    ModelShape("qk", "Q5_0", Shape(1280, 640), 18),
    ModelShape("v", "Q8_0", Shape(256, 640), 9),
    ModelShape("v", "Q5_0", Shape(256, 640), 9),
    ModelShape("o", "Q4_K", Shape(640, 1024), 18),
    ModelShape("gate_up", "Q5_0", Shape(4096, 640), 18),
    ModelShape("down", "Q6_K", Shape(640, 2048), 9),
    ModelShape("down", "Q4_K", Shape(640, 2048), 9),
    ModelShape("lm_head", "Q8_0", Shape(262144, 640)),
)
"""Gemma 3 270M Q4_K_M; its rows of 640 are no multiple of 256, hence the mix."""


def random_blocks(
    kind: str, shape: Shape, seed: int = 0, scale: float = 1.0, signed: bool = True
) -> torch.Tensor:
    """GGUF bytes (N, bytes per row) of a quantised format with finite fp16 scales.

    Codes are uniform; scales are normal with deviation ``scale``, or their magnitude when
    ``signed`` is False.
    """
    entry = format_of(kind)
    generator = torch.Generator().manual_seed(seed)
    blocks = shape.columns // entry.block
    data = torch.randint(
        0, 256, (shape.rows, blocks, entry.block_bytes), generator=generator, dtype=torch.uint8
    )
    halves = 2 if entry.has_min else 1
    offset = entry.block_bytes - 2 if kind == "Q6_K" else 0
    values = torch.randn(shape.rows, blocks, halves, generator=generator) * scale
    if not signed:
        values = values.abs()
    data[..., offset : offset + 2 * halves] = values.half().contiguous().view(torch.uint8)
    return data.flatten(1)
