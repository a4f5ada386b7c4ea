"""Tiny GGUF files over known weights, written by the gguf package."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCABULARY, LAYERS = 64, 4, 2, 32, 96, 50, 2


def hugging_face_weights(family: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights of a two-layer model under their Hugging Face names."""
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    weights = {"model.embed_tokens.weight": rand(VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        weights |= {
            f"{prefix}.input_layernorm.weight": rand(HIDDEN),
            f"{prefix}.post_attention_layernorm.weight": rand(HIDDEN),
            f"{prefix}.self_attn.q_proj.weight": rand(HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": rand(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": rand(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": rand(HIDDEN, HEADS * HEAD_DIM),
            f"{prefix}.mlp.gate_proj.weight": rand(INNER, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": rand(INNER, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": rand(HIDDEN, INNER),
        }
        if family in ("qwen3", "gemma3"):
            weights[f"{prefix}.self_attn.q_norm.weight"] = rand(HEAD_DIM)
            weights[f"{prefix}.self_attn.k_norm.weight"] = rand(HEAD_DIM)
        if family == "gemma3":
            weights[f"{prefix}.pre_feedforward_layernorm.weight"] = rand(HIDDEN)
            weights[f"{prefix}.post_feedforward_layernorm.weight"] = rand(HIDDEN)
        if family == "qwen2":
            weights[f"{prefix}.self_attn.q_proj.bias"] = rand(HEADS * HEAD_DIM)
            weights[f"{prefix}.self_attn.k_proj.bias"] = rand(KV_HEADS * HEAD_DIM)
            weights[f"{prefix}.self_attn.v_proj.bias"] = rand(KV_HEADS * HEAD_DIM)
    weights["model.norm.weight"] = rand(HIDDEN)
    if family != "gemma3":
        weights["lm_head.weight"] = rand(VOCABULARY, HIDDEN)
    return weights


def _interleave(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Row 2i + h of a head takes its row i + h * D/2: what llama.cpp's converter does."""
    order = []
    dim = weight.shape[0] // heads
    for head in range(heads):
        for pair in range(dim // 2):
            order += [head * dim + pair, head * dim + dim // 2 + pair]
    return weight[order]


def write_gguf(
    path: Path,
    family: str,
    weights: dict[str, torch.Tensor],
    quantisation: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> None:
    """Writes the weights as a converter of that family would."""
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(50000.0)
    writer.add_sliding_window(8)
    writer.add_token_list(["<s>", "é", *(str(i) for i in range(VOCABULARY - 2))])
    writer.add_token_scores([0.5] * VOCABULARY)
    writer.add_eos_token_id(7)
    architecture = getattr(gguf.MODEL_ARCH, family.upper())
    names = gguf.get_tensor_name_map(architecture, LAYERS)
    for name, weight in weights.items():
        stem, suffix = name.rsplit(".", 1)
        if family == "llama" and ".q_proj" in name:
            weight = _interleave(weight, HEADS)
        if family == "llama" and ".k_proj" in name:
            weight = _interleave(weight, KV_HEADS)
        if family == "gemma3" and name.endswith("norm.weight"):
            weight = weight + 1
        values: np.ndarray = weight.numpy()
        target = f"{names.get_name(stem)}.{suffix}"
        if values.ndim == 2 and quantisation != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(
                target, gguf.quants.quantize(values, quantisation), raw_dtype=quantisation
            )
        else:
            writer.add_tensor(target, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
