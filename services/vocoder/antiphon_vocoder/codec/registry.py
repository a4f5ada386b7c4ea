"""Opening a codec's directory by the model_type of its config.json."""

from __future__ import annotations

import importlib
from pathlib import Path

import torch
from antiphon_nn.errors import CheckpointError

from antiphon_vocoder.codec.contract import Codec, Precision
from antiphon_vocoder.codec.products import DTYPES, Products
from antiphon_vocoder.codec.weights import CodecWeights

MODULES = {
    "dac": "antiphon_vocoder.codec.dac",
    "encodec": "antiphon_vocoder.codec.encodec",
    "mimi": "antiphon_vocoder.codec.mimi",
    "rvq_vae": "antiphon_vocoder.codec.rvq_vae",
}
"""model_type to the module with its ``load``; imported when it is asked for."""


def load(
    directory: Path | str,
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
) -> Codec:
    """Reads a codec's config.json and safetensors.

    Raises:
        CheckpointError: the directory holds no such checkpoint, or one with a missing, extra or
            misshapen tensor, or with a configuration that is not implemented.
    """
    if precision not in DTYPES:
        raise ValueError(f"precision is {precision!r}; supported: {', '.join(DTYPES)}")
    weights = CodecWeights(directory)
    try:
        family = weights.config.choice("model_type", tuple(MODULES))
        module = importlib.import_module(MODULES[family])
        codec: Codec = module.load(weights, Products(torch.device(device), precision))
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(weights.path / "config.json", str(error)) from error
    weights.finish()
    return codec
