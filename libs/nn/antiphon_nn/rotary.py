"""Rotary embedding: reading the configuration's spellings and building the tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from antiphon_kernels.rope import rope

ROPE_TYPES = ("default", "linear", "llama3", "yarn", "factors")


@dataclass(frozen=True)
class RopeSettings:
    """One resolved rotary configuration.

    Attributes:
        kind: one of :data:`ROPE_TYPES`; ``factors`` divides each frequency by a number of the
            checkpoint's own.
        theta: the base.
        rotary_dim: elements of a head that are rotated.
        original_context: positions of the original training, for llama3 and yarn.
        options: the remaining keys of the scaling dictionary.
    """

    kind: str
    theta: float
    rotary_dim: int
    original_context: int
    options: Mapping[str, Any] = field(default_factory=dict)


def rope_settings(
    config: Mapping[str, Any], layer_type: str | None = None, head_dim: int | None = None
) -> RopeSettings:
    """Resolves the rotary settings of a layer from any of the three spellings.

    ``rope_parameters`` flat or keyed by layer type; or ``rope_theta`` with ``rope_scaling``,
    where ``rope_local_base_freq`` is the unscaled base of sliding layers (Gemma 3).

    Raises:
        ValueError: an unknown rope type, or a key that the type needs is absent.
    """
    options = dict(_scaling_of(config, layer_type))
    theta = float(options.pop("rope_theta", config.get("rope_theta") or 10000.0))
    kind = options.pop("rope_type", None) or options.pop("type", None) or "default"
    options.pop("type", None)
    if kind not in ROPE_TYPES:
        raise ValueError(f"rope_type is {kind!r}, supported are {', '.join(ROPE_TYPES)}")
    if kind in ("linear", "llama3", "yarn") and "factor" not in options:
        raise ValueError(f"rope_type {kind!r} needs the key factor in rope_scaling")
    dim: int = (
        head_dim
        or config.get("head_dim")
        or (config["hidden_size"] // config["num_attention_heads"])
    )
    partial = options.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor", 1.0)
    original = options.pop("original_max_position_embeddings", None) or config.get(
        "max_position_embeddings", 0
    )
    return RopeSettings(kind, theta, int(dim * partial), int(original), options)


def _scaling_of(config: Mapping[str, Any], layer_type: str | None) -> Mapping[str, Any]:
    parameters = config.get("rope_parameters")
    if parameters:
        nested = isinstance(next(iter(parameters.values())), Mapping)
        if not nested:
            return parameters
        if layer_type not in parameters:
            known = ", ".join(parameters)
            raise ValueError(f"rope_parameters has no layer type {layer_type!r}, only {known}")
        return parameters[layer_type]
    local_theta = config.get("rope_local_base_freq")
    if layer_type == "sliding_attention" and local_theta is not None:
        return {"rope_theta": local_theta}
    return config.get("rope_scaling") or {}


def inverse_frequencies(settings: RopeSettings) -> tuple[torch.Tensor, float]:
    """Angles per position (rotary_dim / 2) fp32, and the factor of both tables."""
    dim, theta = settings.rotary_dim, settings.theta
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    plain = 1.0 / (theta**exponents)
    options = settings.options
    if settings.kind == "linear":
        return plain / float(options["factor"]), 1.0
    if settings.kind == "factors":
        factors = torch.tensor(options["factors"], dtype=torch.float32)
        if factors.shape != plain.shape:
            raise ValueError(f"rope has {len(factors)} factors, expected {len(plain)}")
        return plain / factors, 1.0
    if settings.kind == "llama3":
        return _llama3(plain, settings), 1.0
    if settings.kind == "yarn":
        return _yarn(plain, settings)
    return plain, 1.0


def _llama3(plain: torch.Tensor, settings: RopeSettings) -> torch.Tensor:
    options = settings.options
    factor = float(options["factor"])
    low, high = float(options["low_freq_factor"]), float(options["high_freq_factor"])
    wavelength = 2 * math.pi / plain
    smooth = (settings.original_context / wavelength - low) / (high - low)
    blended = (1 - smooth) * plain / factor + smooth * plain
    scaled = torch.where(wavelength > settings.original_context / low, plain / factor, blended)
    return torch.where(wavelength < settings.original_context / high, plain, scaled)


def _yarn(plain: torch.Tensor, settings: RopeSettings) -> tuple[torch.Tensor, float]:
    options, dim = settings.options, settings.rotary_dim
    factor = float(options["factor"])

    def correction(rotations: float) -> float:
        ratio = settings.original_context / (rotations * 2 * math.pi)
        return dim * math.log(ratio) / (2 * math.log(settings.theta))

    low = correction(float(options.get("beta_fast") or 32.0))
    high = correction(float(options.get("beta_slow") or 1.0))
    if options.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    scaled = plain / factor * (1 - kept) + plain * kept
    return scaled, _yarn_attention_factor(options, factor)


def _yarn_attention_factor(options: Mapping[str, Any], factor: float) -> float:
    if options.get("attention_factor") is not None:
        return float(options["attention_factor"])

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    scale, scale_all = options.get("mscale"), options.get("mscale_all_dim")
    if scale and scale_all:
        return magnitude(float(scale)) / magnitude(float(scale_all))
    return magnitude(1.0)


class RotaryEmbedding:
    """Tables for positions 0 .. max_positions - 1 and the in-place rotation of q and k."""

    def __init__(
        self,
        settings: RopeSettings,
        max_positions: int,
        device: torch.device | str = "cpu",
    ) -> None:
        frequencies, factor = inverse_frequencies(settings)
        angles = torch.arange(max_positions).float()[:, None] * frequencies[None, :]
        self.settings = settings
        self.cos = (angles.cos() * factor).to(device)
        self.sin = (angles.sin() * factor).to(device)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor) -> None:
        """Rotates q (N, Hq, D) and k (N, Hkv, D) in place; positions (N) int32."""
        rope(q, k, positions, self.cos, self.sin)
