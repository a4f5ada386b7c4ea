"""Llama 2, 3.x and models of their shape, such as SmolLM2."""

from __future__ import annotations

from .config_reader import ConfigReader
from .spec import DecoderSpec, LayerSpec, attention_shape, common_fields, rope_of


def decoder_spec(reader: ConfigReader) -> DecoderSpec:
    """Full attention everywhere; biases and rope scaling as the config says."""
    heads, kv_heads, head_dim = attention_shape(reader)
    reader.choice("hidden_act", ("silu",), "silu")
    reader.choice("sliding_window", (None,), None)
    attention_bias = reader.flag("attention_bias", False)
    layer = LayerSpec(
        heads, kv_heads, head_dim, scale=head_dim**-0.5, rope=rope_of(reader, head_dim)
    )
    return DecoderSpec(
        **common_fields(reader, tied_default=False),
        layers=(layer,) * reader.integer("num_hidden_layers"),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=reader.flag("mlp_bias", False),
    )
