"""Qwen3 shapes with random weights that are made on the device: nothing is read from disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from antiphon_kernels.quant_linear import PackedWeight
from antiphon_nn.checkpoint import Checkpoint

WEIGHT_STD = 0.02


@dataclass(frozen=True)
class Qwen3Shape:
    """A Qwen3 model's sizes."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    tied: bool
    head_dim: int = 128
    vocabulary: int = 151936

    def config(self) -> dict[str, Any]:
        """The shape as ``config.json`` spells it."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1_000_000.0,
            "tie_word_embeddings": self.tied,
            "attention_bias": False,
            "hidden_act": "silu",
        }

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the checkpoint."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        named: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocabulary, self.hidden),
            "model.norm.weight": (self.hidden,),
        }
        if not self.tied:
            named["lm_head.weight"] = (self.vocabulary, self.hidden)
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            named |= {
                f"{prefix}.input_layernorm.weight": (self.hidden,),
                f"{prefix}.post_attention_layernorm.weight": (self.hidden,),
                f"{prefix}.self_attn.q_norm.weight": (self.head_dim,),
                f"{prefix}.self_attn.k_norm.weight": (self.head_dim,),
                f"{prefix}.self_attn.q_proj.weight": (queries, self.hidden),
                f"{prefix}.self_attn.k_proj.weight": (keys, self.hidden),
                f"{prefix}.self_attn.v_proj.weight": (keys, self.hidden),
                f"{prefix}.self_attn.o_proj.weight": (self.hidden, queries),
                f"{prefix}.mlp.gate_proj.weight": (self.intermediate, self.hidden),
                f"{prefix}.mlp.up_proj.weight": (self.intermediate, self.hidden),
                f"{prefix}.mlp.down_proj.weight": (self.hidden, self.intermediate),
            }
        return named


QWEN3_0_6B = Qwen3Shape("Qwen3-0.6B", 1024, 3072, 28, 16, 8, tied=True)
QWEN3_8B = Qwen3Shape("Qwen3-8B", 4096, 12288, 36, 32, 8, tied=False)


class RandomCheckpoint(Checkpoint):
    """A checkpoint whose tensors are drawn when they are read."""

    def __init__(self, shape: Qwen3Shape, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.path = Path(shape.name)
        self.config = shape.config()
        self._shapes = shape.tensors()
        self._device = device
        self._dtype = dtype
        self._generator = torch.Generator(device).manual_seed(3)

    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self._shapes[name]

    def _tensor(self, name: str) -> torch.Tensor:
        tensor = torch.empty(self._shapes[name], dtype=self._dtype, device=self._device)
        if tensor.dim() == 1:
            return tensor.fill_(1.0)
        return tensor.normal_(0.0, WEIGHT_STD, generator=self._generator)

    def _linear(self, name: str) -> PackedWeight:
        raise NotImplementedError("random weights are dense")
