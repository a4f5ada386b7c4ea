"""Qwen3: RMSNorm over each head of q and k before the rotation."""

from __future__ import annotations

from .config_reader import ConfigReader
from .qwen import windowed_layers
from .spec import DecoderSpec, common_fields


def decoder_spec(reader: ConfigReader) -> DecoderSpec:
    """``attention_bias`` covers q, k, v and the output."""
    attention_bias = reader.flag("attention_bias", False)
    reader.choice("mlp_bias", (False,), False)
    return DecoderSpec(
        **common_fields(reader, tied_default=False),
        layers=windowed_layers(reader),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        qk_norm=True,
    )
