"""Codecs with random weights that are made when they are read: nothing comes from disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from antiphon_nn.config_reader import ConfigReader
from antiphon_vocoder.codec.contract import Precision
from antiphon_vocoder.codec.mimi import Mimi
from antiphon_vocoder.codec.products import Products
from antiphon_vocoder.codec.weights import CodecWeights

MIMI: dict[str, Any] = {
    "model_type": "mimi",
    "sampling_rate": 24000,
    "num_filters": 64,
    "hidden_size": 512,
    "upsampling_ratios": [8, 6, 5, 4],
    "kernel_size": 7,
    "last_kernel_size": 3,
    "residual_kernel_size": 3,
    "pad_mode": "constant",
    "num_quantizers": 32,
    "num_semantic_quantizers": 1,
    "codebook_size": 2048,
    "codebook_dim": 256,
    "vector_quantization_hidden_dimension": 256,
    "sliding_window": 250,
}
"""kyutai/mimi's sizes; what is not named is at its default."""

GAIN = 1.3
"""Of convolutions, so that activations keep their size through ELU."""

CODEBOOK_DECAY = 0.9
"""Scale of each codebook by the one before: later ones refine."""


class RandomWeights(CodecWeights):
    """Draws each tensor that is asked for, always the same for the same name and order."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.path = Path(str(config["model_type"]))
        self.config = ConfigReader(config, str(config["model_type"]))
        self._generator = torch.Generator().manual_seed(5)

    def __contains__(self, name: str) -> bool:
        return name.endswith((".weight", ".bias"))

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A weight whose products keep the size of their input."""
        if name.endswith((".cluster_usage", ".initialized")):
            return torch.ones(shape)
        drawn = torch.randn(shape, generator=self._generator)
        if name.endswith(".scale"):
            return drawn.abs_().mul_(0.1)
        if name.endswith("layernorm.weight"):
            return drawn.mul_(0.1).add_(1)
        if name.endswith(".bias"):
            return drawn.mul_(0.02)
        if name.endswith(".embed_sum"):
            level = int(name.split(".layers.")[1].split(".")[0])
            return drawn.mul_(CODEBOOK_DECAY**level)
        fan_in = shape[0] if "decoder" in name and len(shape) == 3 else shape[1]
        if len(shape) == 3:
            # Of a transposed convolution two of the kernel's positions meet in a sample.
            overlap = 2 if name.startswith(("decoder.layers", "upsample")) else shape[2]
            fan_in *= overlap if shape[2] > 3 and name.startswith("decoder") else shape[2]
            drawn *= GAIN
        return drawn.div_(fan_in**0.5)


def random_mimi(device: torch.device | str, precision: Precision = "fp32", **changes: Any) -> Mimi:
    """A full-size Mimi; ``changes`` replace keys of its config."""
    weights = RandomWeights(MIMI | changes)
    return Mimi(weights, Products(torch.device(device), precision))
