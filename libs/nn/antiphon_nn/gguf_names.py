"""GGUF vocabulary to Hugging Face vocabulary: tensor names and model configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from antiphon_nn.errors import CheckpointError
from antiphon_nn.gguf_file import GgufFile

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_LAYER = _LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

ROPE_FACTORS = "rope_freqs.weight"
"""Per-frequency divisors that llama.cpp writes for llama3 rope scaling."""
GEMMA3_PATTERN = 6
"""Every sixth Gemma 3 layer attends globally; the file does not say so."""
GEMMA3_LOCAL_THETA = 10000.0
GEMMA3_27B_LAYERS = 62
"""The only Gemma 3 size whose attention scale is not head_dim**-0.5."""


@dataclass(frozen=True)
class Family:
    """How a GGUF architecture maps to its Hugging Face class.

    Attributes:
        architecture, model_type: Hugging Face names.
        layer_names: GGUF names inside a block.
        permuted_rope: q and k rows are stored for interleaved rotation and must be re-ordered.
        norms_plus_one: norm weights are stored as 1 + w.
    """

    architecture: str
    model_type: str
    layer_names: dict[str, str]
    permuted_rope: bool = False
    norms_plus_one: bool = False


FAMILIES = {
    "llama": Family("LlamaForCausalLM", "llama", _LAYER, permuted_rope=True),
    "qwen2": Family("Qwen2ForCausalLM", "qwen2", _LAYER),
    "qwen3": Family("Qwen3ForCausalLM", "qwen3", _LAYER),
    "gemma3": Family("Gemma3ForCausalLM", "gemma3_text", _GEMMA_LAYER, norms_plus_one=True),
}


def family_of(file: GgufFile) -> Family:
    """The family that ``general.architecture`` names."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise CheckpointError(file.path, f"general.architecture is {name!r}, known are {known}")
    return FAMILIES[name]


def hugging_face_name(family: Family, name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor, or None for a name that the family has not."""
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in _TOP:
        return f"{_TOP[parts[0]]}.{parts[1]}"
    if len(parts) == 4 and parts[0] == "blk" and parts[1].isdecimal():
        inner = family.layer_names.get(parts[2])
        if inner is not None and parts[3] in ("weight", "bias"):
            return f"model.layers.{int(parts[1])}.{inner}.{parts[3]}"
    return None


def config_of(file: GgufFile, family: Family) -> dict[str, Any]:
    """The model's configuration in the vocabulary of its Hugging Face ``config.json``."""
    keys = _Keys(file)
    hidden = keys.integer("embedding_length")
    heads = keys.integer("attention.head_count")
    head_dim = keys.integer("attention.key_length", hidden // heads)
    if keys.integer("attention.value_length", head_dim) != head_dim:
        raise CheckpointError(file.path, "key and value lengths of attention differ")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(file.path, "has no tensor token_embd.weight")
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": keys.integer("feed_forward_length"),
        "num_hidden_layers": keys.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": keys.integer("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(file, keys),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "sliding_window": keys.integer("attention.sliding_window", 0) or None,
    }
    rotary_dim = keys.integer("rope.dimension_count", head_dim)
    if rotary_dim != head_dim:
        config["partial_rotary_factor"] = rotary_dim / head_dim
    for field in ("bos", "eos", "padding"):
        token = file.metadata.get(f"tokenizer.ggml.{field}_token_id")
        config[f"{'pad' if field == 'padding' else field}_token_id"] = token
    if family.model_type == "gemma3_text":
        _complete_gemma3(config, keys)
    return config


def _complete_gemma3(config: dict[str, Any], keys: _Keys) -> None:
    layers, head_dim = config["num_hidden_layers"], config["head_dim"]
    scalar = head_dim
    if layers == GEMMA3_27B_LAYERS:
        scalar = config["hidden_size"] // config["num_attention_heads"]
    config |= {
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_act": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "rope_local_base_freq": keys.number("rope.freq_base_swa", GEMMA3_LOCAL_THETA),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "use_bidirectional_attention": False,
        "layer_types": [
            "full_attention" if (layer + 1) % GEMMA3_PATTERN == 0 else "sliding_attention"
            for layer in range(layers)
        ],
    }


def _rope_scaling(file: GgufFile, keys: _Keys) -> dict[str, Any] | None:
    if ROPE_FACTORS in file.tensors:
        factors = file.data(ROPE_FACTORS).view("<f4").reshape(-1)
        return {"rope_type": "factors", "factors": factors.tolist()}
    kind = keys.text("rope.scaling.type", "none")
    if kind == "none":
        return None
    factor = keys.number("rope.scaling.factor")
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        original = keys.integer("rope.scaling.original_context_length")
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
        }
    raise CheckpointError(
        file.path, f"rope.scaling.type is {kind!r}, supported are none, linear, yarn"
    )


class _Keys:
    """Typed look-up of the keys under the architecture's prefix."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._prefix = str(file.metadata["general.architecture"])

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self._wrong(name, value, "an integer")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._wrong(name, value, "a number")
        return float(value)

    def text(self, name: str, default: str) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            self._wrong(name, value, "a string")
        return value

    def _get(self, name: str, default: Any) -> Any:
        value = self._file.metadata.get(f"{self._prefix}.{name}", default)
        if value is None:
            raise CheckpointError(self._file.path, f"has no metadata {self._prefix}.{name}")
        return value

    def _wrong(self, name: str, value: object, expected: str) -> NoReturn:
        raise CheckpointError(
            self._file.path, f"metadata {self._prefix}.{name} is {value!r}, expected {expected}"
        )
