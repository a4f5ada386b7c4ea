"""LoRA adapters for tests, as the PEFT library saves them, and the same merged into a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


def module_path(layer: int, module: str) -> str:
    """Where transformers has a module."""
    part = "self_attn" if module in ATTENTION else "mlp"
    return f"model.layers.{layer}.{part}.{module}"


def shapes_of(config: Any) -> dict[str, tuple[int, int]]:
    """Inputs and outputs by module, of a transformers config."""
    hidden, wide = config.hidden_size, config.intermediate_size
    dim = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    heads, kv_heads = config.num_attention_heads * dim, config.num_key_value_heads * dim
    return {
        "q_proj": (hidden, heads), "k_proj": (hidden, kv_heads), "v_proj": (hidden, kv_heads),
        "o_proj": (heads, hidden), "gate_proj": (hidden, wide), "up_proj": (hidden, wide),
        "down_proj": (wide, hidden),
    }  # fmt: skip


def save_adapter(
    path: Path,
    shapes: Mapping[str, tuple[int, int]],
    layers: int,
    *,
    rank: int = 8,
    modules: Sequence[str] = ALL,
    seed: int = 0,
    size: float = 1.0,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Path:
    """Writes a random adapter whose products are about ``size`` times their inputs' length."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(layers):
        for module in modules:
            inputs, outputs = shapes[module]
            name = f"base_model.model.{module_path(layer, module)}"
            a = torch.randn(rank, inputs, generator=generator) * inputs**-0.5
            b = torch.randn(outputs, rank, generator=generator) * size * rank**-0.5
            tensors[f"{name}.lora_A.weight"] = a.to(dtype)
            tensors[f"{name}.lora_B.weight"] = b.to(dtype)
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "base",
        "r": rank, "lora_alpha": rank, "lora_dropout": 0.05, "bias": "none",
        "use_rslora": False, "use_dora": False, "fan_in_fan_out": False,
        "init_lora_weights": True, "inference_mode": True, "modules_to_save": None,
        "layers_to_transform": None, "rank_pattern": {}, "alpha_pattern": {},
        "target_modules": sorted(modules), **config,
    }  # fmt: skip
    (path / "adapter_config.json").write_text(json.dumps(settings))
    return path


def merge(model: torch.nn.Module, path: Path) -> torch.nn.Module:
    """Adds an adapter to a transformers model's own weights: W + s B A."""
    config = json.loads((path / "adapter_config.json").read_text())
    root = config["r"] ** 0.5 if config["use_rslora"] else config["r"]
    scale = config["lora_alpha"] / root
    tensors = load_file(path / "adapter_model.safetensors")
    with torch.no_grad():
        for name, a in tensors.items():
            if ".lora_A." not in name:
                continue
            b = tensors[name.replace(".lora_A.", ".lora_B.")]
            target = name.removeprefix("base_model.model.").replace(".lora_A.weight", "")
            weight = model.get_submodule(target).weight
            weight += (scale * b.double() @ a.double()).to(weight.dtype)
    return model


class SmolLM2:
    """What shapes_of reads, of the default model."""

    hidden_size, intermediate_size, num_hidden_layers = 576, 1536, 30
    num_attention_heads, num_key_value_heads, head_dim = 9, 3, 64


def save_for_default_model(path: Path, **options: Any) -> Path:
    """A random adapter that changes what the default model says."""
    options = {"rank": 4, "modules": ("q_proj", "v_proj"), "size": 4.0, **options}
    return save_adapter(path, shapes_of(SmolLM2), SmolLM2.num_hidden_layers, **options)
