"""The configuration of a LoRA adapter as the PEFT library saves it, read without the library."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon_llm.models.adapters import MODULES

from .paths import CONFIG
from .refusal import AdapterRefused

_CONFIG_BYTES = 1 << 20
IRRELEVANT = frozenset(
    (
        "auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode",
        "lora_dropout", "peft_version", "exclude_modules", "layers_pattern", "megatron_core",
        "qalora_group_size", "runtime_config", "eva_config", "ensure_weight_tying",
    )
)  # fmt: skip
"""Keys that training or the library needs; they change nothing of the finished product."""
READ = frozenset(
    ("peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "bias", "init_lora_weights")
)
REFUSED: Mapping[str, str] = {
    "modules_to_save": "it replaces whole modules, and the base model's are shared",
    "use_dora": "DoRA rescales the base model's weights",
    "use_qalora": "QALoRA is not served",
    "lora_bias": "biases of adapters are not served",
    "fan_in_fan_out": "no served model stores its weights that way",
    "layers_to_transform": "an adapter covers every layer or none",
    "layer_replication": "it changes the base model's layers",
    "rank_pattern": "one rank for all modules is served",
    "alpha_pattern": "one lora_alpha for all modules is served",
    "target_parameters": "experts are not served",
    "trainable_token_indices": "it changes the base model's embeddings",
    "alora_invocation_tokens": "adapters that start within a prompt are not served",
    "megatron_config": "split adapters are not served",
    "loftq_config": "it changes the base model's weights",
    "corda_config": "it changes the base model's weights",
    "arrow_config": "routed adapters are not served",
}
"""Keys that, where they are set, ask for another product, and why that is not served."""
_CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to begin that train against a base model with other weights than the served one's."""


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """What the finished product needs to know."""

    rank: int
    scale: float
    """lora_alpha / r, or lora_alpha / sqrt(r) with rslora (Kalajdzievski, 2023)."""
    targets: frozenset[str] | None
    """Modules that have to be there; None where the adapter names them by a pattern."""


def read_config(path: Path, *, rank_max: int) -> PeftConfig:
    """Reads ``adapter_config.json``.

    Raises:
        AdapterRefused: naming the key and what it may be.
    """
    config = _object(path)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise _wrong("peft_type", kind, "LORA")
    for key, reason in REFUSED.items():
        if config.get(key):
            raise AdapterRefused(f"{CONFIG}: {key} is set, and {reason}", field="path")
    unknown = sorted(
        key for key in config.keys() - IRRELEVANT - READ - REFUSED.keys() if config[key]
    )
    if unknown:
        raise AdapterRefused(
            f"{CONFIG}: {', '.join(unknown[:10])[:300]} is unknown here and may change the product",
            field="path",
        )
    if config.get("bias", "none") != "none":
        raise _wrong("bias", config["bias"], "none")
    began = config.get("init_lora_weights")
    if isinstance(began, str) and began.lower().startswith(_CHANGED_BASE):
        raise AdapterRefused(
            f"{CONFIG}: init_lora_weights is {began[:40]!r}, which fits a changed base model; "
            "convert the adapter to plain LoRA first",
            field="path",
        )
    rank = config.get("r")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 < rank <= rank_max:
        raise _wrong("r", rank, f"1 to {rank_max}, [llm] adapter_rank_max")
    return PeftConfig(rank, _scale(config, rank), _targets(config.get("target_modules")))


def _object(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size > _CONFIG_BYTES:
        raise AdapterRefused(
            f"{CONFIG} has {size} bytes, at most {_CONFIG_BYTES}", field="path",
            limit=_CONFIG_BYTES, observed=size,
        )  # fmt: skip
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise AdapterRefused(f"{CONFIG} is no valid JSON: {error}", field="path") from error
    if not isinstance(value, dict):
        raise AdapterRefused(f"{CONFIG} is no JSON object", field="path")
    return value


def _scale(config: Mapping[str, Any], rank: int) -> float:
    alpha = config.get("lora_alpha")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not _is_finite(alpha):
        raise _wrong("lora_alpha", alpha, "a finite number")
    rescaled = config.get("use_rslora", False)
    if not isinstance(rescaled, bool | None):
        raise _wrong("use_rslora", rescaled, "true or false")
    return float(alpha) / (math.sqrt(rank) if rescaled else rank)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _targets(value: Any) -> frozenset[str] | None:
    """A text is a pattern, or ``all-linear``: what it means shows in the tensors."""
    if isinstance(value, str) and value:
        return frozenset(MODULES) if value == "all-linear" else None
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise _wrong("target_modules", value, "a list of names, or a pattern")
    names = {name.rpartition(".")[2] for name in value}
    unknown = sorted(names - set(MODULES))
    if unknown:
        raise _wrong("target_modules", unknown, f"of {', '.join(MODULES)}")
    return frozenset(names)


def _wrong(key: str, value: Any, allowed: str) -> AdapterRefused:
    return AdapterRefused(
        f"{CONFIG}: {key} is {str(value)[:200]!r}, allowed is {allowed}", field="path"
    )
