"""Gemma 3 text models: local and global layers, four norms a block, scaled embeddings."""

from __future__ import annotations

from dataclasses import replace

from .config_reader import ConfigReader
from .spec import DecoderSpec, LayerSpec, attention_shape, common_fields, rope_of

_PATTERN = 6
"""Every sixth layer is global unless the config says otherwise."""
_GLOBAL_THETA = 1_000_000.0
_LOCAL_THETA = 10_000.0


def decoder_spec(reader: ConfigReader) -> DecoderSpec:
    """Local layers rotate with their own, unscaled theta and see ``sliding_window`` keys."""
    heads, kv_heads, head_dim = attention_shape(reader)
    reader.choice("hidden_activation", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    reader.choice("hidden_act", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    reader.choice("use_bidirectional_attention", (False,), False)
    reader.choice("mlp_bias", (False,), False)
    attention_bias = reader.flag("attention_bias", False)
    count = reader.integer("num_hidden_layers")
    pattern = reader.integer(
        "sliding_window_pattern", reader.integer("_sliding_window_pattern", _PATTERN)
    )
    types = reader.layer_types(
        count,
        ["sliding_attention" if (index + 1) % pattern else "full_attention"
         for index in range(count)],
    )  # fmt: skip
    with_thetas = ConfigReader(_with_default_thetas(reader), reader.family)
    full = LayerSpec(
        heads,
        kv_heads,
        head_dim,
        scale=reader.number("query_pre_attn_scalar", 256) ** -0.5,
        rope=rope_of(with_thetas, head_dim, "full_attention"),
        softcap=reader.number("attn_logit_softcapping", 0.0),
    )
    local = replace(
        full,
        rope=rope_of(with_thetas, head_dim, "sliding_attention"),
        window=reader.integer("sliding_window", 4096),
    )
    common = common_fields(reader, tied_default=True)
    return DecoderSpec(
        **common,
        layers=tuple(local if kind == "sliding_attention" else full for kind in types),
        activation="gelu_tanh",
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        qk_norm=True,
        norm_plus_one=True,
        block_output_norms=True,
        embedding_scale=float(common["hidden_size"]) ** 0.5,
        final_softcap=reader.number("final_logit_softcapping", 0.0),
    )


def _with_default_thetas(reader: ConfigReader) -> dict[str, object]:
    """The rotary keys with the family's own thetas where the config leaves them out."""
    rope = {
        key: reader.raw(key, None)
        for key in ("rope_scaling", "rope_parameters", "max_position_embeddings",
                    "partial_rotary_factor")
    }  # fmt: skip
    rope["rope_theta"] = reader.number("rope_theta", _GLOBAL_THETA)
    rope["rope_local_base_freq"] = reader.number("rope_local_base_freq", _LOCAL_THETA)
    thetas = {
        "full_attention": rope["rope_theta"],
        "sliding_attention": rope["rope_local_base_freq"],
    }
    if isinstance(rope["rope_parameters"], dict):
        rope["rope_parameters"] = {
            kind: {"rope_theta": thetas.get(kind), **given} if isinstance(given, dict) else given
            for kind, given in rope["rope_parameters"].items()
        }
    return rope
