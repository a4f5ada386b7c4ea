"""What a decoder family is made of, resolved from its config before any weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon_nn.rotary import RopeSettings, rope_settings

from .config_reader import ConfigReader, UnsupportedConfig

ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq")


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One attention layer."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSettings
    window: int = 0
    """Keys that a query sees, itself included; 0 is all."""
    softcap: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A pre-norm decoder with gated feed-forward blocks."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    context_limit: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    tied_head: bool
    activation: str = "silu"
    """silu or gelu_tanh, of the gate."""
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMSNorm over each head of q and k before the rotation."""
    norm_plus_one: bool = False
    """Norms scale by 1 + w."""
    block_output_norms: bool = False
    """Attention and feed-forward outputs are normalised before they join the residual."""
    embedding_scale: float = 1.0
    final_softcap: float = 0.0
    generates: bool = True
    """Whether the checkpoint has a head to draw tokens with."""

    @property
    def dense(self) -> bool:
        """Whether every token uses all weights: no layer here has experts."""
        return True

    def __post_init__(self) -> None:
        # The KV pool holds each layer's own geometry; activations are laid out for one.
        shapes = {(layer.heads, layer.kv_heads, layer.head_dim) for layer in self.layers}
        if len(shapes) != 1:
            raise UnsupportedConfig(
                f"{self.family}: layers have {len(shapes)} head geometries {sorted(shapes)}, "
                "served is one"
            )


def attention_shape(reader: ConfigReader) -> tuple[int, int, int]:
    """(heads, kv_heads, head_dim); head_dim is hidden_size / heads only where not given."""
    heads = reader.integer("num_attention_heads")
    kv_heads = reader.integer("num_key_value_heads", heads)
    hidden = reader.integer("hidden_size")
    if heads % kv_heads:
        raise UnsupportedConfig(
            f"{reader.family}: num_attention_heads {heads} is no multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    if reader.raw("head_dim", None) is None and hidden % heads:
        raise UnsupportedConfig(
            f"{reader.family}: hidden_size {hidden} is no multiple of num_attention_heads "
            f"{heads} and head_dim is not given"
        )
    return heads, kv_heads, reader.integer("head_dim", hidden // heads)


def rope_of(reader: ConfigReader, head_dim: int, layer_type: str | None = None) -> RopeSettings:
    """The rotary settings of a layer type, from any of the config's spellings."""
    keys = (*ROPE_KEYS, "max_position_embeddings", "partial_rotary_factor")
    read = {key: reader.raw(key, None) for key in keys}
    config: Mapping[str, Any] = {key: value for key, value in read.items() if value is not None}
    try:
        return rope_settings(config, layer_type, head_dim)
    except (ValueError, KeyError) as problem:
        raise UnsupportedConfig(f"{reader.family}: {problem}") from problem


def common_fields(reader: ConfigReader, *, tied_default: bool) -> dict[str, Any]:
    """The DecoderSpec fields that every family spells alike."""
    return {
        "family": reader.family,
        "vocab_size": reader.integer("vocab_size"),
        "hidden_size": reader.integer("hidden_size"),
        "intermediate_size": reader.integer("intermediate_size"),
        "context_limit": reader.integer("max_position_embeddings"),
        "norm_eps": reader.number("rms_norm_eps", 1e-6),
        "tied_head": reader.flag("tie_word_embeddings", tied_default),
    }
