"""What Qwen2 and Qwen3 share: upper layers may attend through a window."""

from __future__ import annotations

from dataclasses import replace

from .config_reader import ConfigReader, UnsupportedConfig
from .spec import LayerSpec, attention_shape, rope_of


def windowed_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Layers by ``layer_types``; without it, those from ``max_window_layers`` on are windowed
    when ``use_sliding_window`` is set."""
    heads, kv_heads, head_dim = attention_shape(reader)
    reader.choice("hidden_act", ("silu",), "silu")
    count = reader.integer("num_hidden_layers")
    windowed = reader.flag("use_sliding_window", False)
    first_windowed = reader.integer("max_window_layers", count, least=0)
    window = reader.integer("sliding_window", 4096)
    default = [
        "sliding_attention" if windowed and index >= first_windowed else "full_attention"
        for index in range(count)
    ]
    types = reader.layer_types(count, default)
    if "sliding_attention" in types and not windowed:
        raise UnsupportedConfig(
            f"{reader.family}: layer_types names sliding_attention but use_sliding_window is "
            "false; supported: use_sliding_window true, or full_attention only"
        )
    full = LayerSpec(
        heads, kv_heads, head_dim, scale=head_dim**-0.5, rope=rope_of(reader, head_dim)
    )
    sliding = replace(full, window=window)
    return tuple(sliding if kind == "sliding_attention" else full for kind in types)
