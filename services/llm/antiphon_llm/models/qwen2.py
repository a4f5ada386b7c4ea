"""Qwen2 and Qwen2.5: biases on q, k and v, none on the output."""

from __future__ import annotations

from .config_reader import ConfigReader
from .qwen import windowed_layers
from .spec import DecoderSpec, common_fields


def decoder_spec(reader: ConfigReader) -> DecoderSpec:
    """The family has no switch for its biases."""
    reader.choice("attention_bias", (True, None), None)
    reader.choice("mlp_bias", (False,), False)
    return DecoderSpec(
        **common_fields(reader, tied_default=False),
        layers=windowed_layers(reader),
        qkv_bias=True,
    )
