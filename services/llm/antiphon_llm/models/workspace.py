"""Activations of one layer, at fixed addresses, used again by the next layer and step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .spec import DecoderSpec

_KEPT_VIEWS = 64
"""Token counts up to this many keep their views: those of decode steps, which recur."""


@dataclass(frozen=True, slots=True)
class LayerViews:
    """The buffers cut to N tokens. q, k and v are views of one fused row, gate and up too."""

    qkv: torch.Tensor
    queries: torch.Tensor
    """(N, heads, head_dim)."""
    keys: torch.Tensor
    values: torch.Tensor
    """(N, kv_heads, head_dim)."""
    mixed: torch.Tensor
    """(N, heads, head_dim), attention's output."""
    mixed_rows: torch.Tensor
    """(N, heads * head_dim), the same memory."""
    gate_up: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    activated: torch.Tensor
    """(N, intermediate)."""
    update: torch.Tensor
    """(N, hidden), what a half block adds to the residual stream."""


class Workspace:
    """Grows to the widest step seen; a decode step allocates nothing."""

    def __init__(self, spec: DecoderSpec) -> None:
        layer = spec.layers[0]
        self._heads, self._kv_heads, self._dim = layer.heads, layer.kv_heads, layer.head_dim
        self._widths = {
            "qkv": (layer.heads + 2 * layer.kv_heads) * layer.head_dim,
            "mixed": layer.heads * layer.head_dim,
            "gate_up": 2 * spec.intermediate_size,
            "activated": spec.intermediate_size,
            "update": spec.hidden_size,
        }
        self._rows = 0
        self._buffers: dict[str, torch.Tensor] = {}
        self._views: dict[int, LayerViews] = {}

    def views(self, tokens: int) -> LayerViews:
        """The buffers for N tokens, valid until a wider step."""
        kept = self._views.get(tokens)
        if kept is not None:
            return kept
        if tokens > self._rows:
            self._rows = max(tokens, _KEPT_VIEWS)
            self._buffers = {
                name: torch.empty(self._rows, width) for name, width in self._widths.items()
            }
            self._views.clear()
        views = self._cut(tokens)
        if tokens <= _KEPT_VIEWS:
            self._views[tokens] = views
        return views

    def _cut(self, tokens: int) -> LayerViews:
        rows = {name: buffer[:tokens] for name, buffer in self._buffers.items()}
        heads = rows["qkv"].view(tokens, -1, self._dim)
        gate, up = rows["gate_up"].chunk(2, dim=1)
        return LayerViews(
            qkv=rows["qkv"],
            queries=heads[:, : self._heads],
            keys=heads[:, self._heads : self._heads + self._kv_heads],
            values=heads[:, self._heads + self._kv_heads :],
            mixed=rows["mixed"].view(tokens, self._heads, self._dim),
            mixed_rows=rows["mixed"],
            gate_up=rows["gate_up"],
            gate=gate,
            up=up,
            activated=rows["activated"],
            update=rows["update"],
        )
