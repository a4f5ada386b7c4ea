"""Activations of one layer, used again by the next layer and step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .spec import DecoderSpec

FIXED_TOKENS = 64
"""Steps of up to so many tokens, all that only decode among them, have memory of their own
whose addresses never change; a wider row limit raises it."""


@dataclass(frozen=True, slots=True)
class LayerViews:
    """The buffers cut to N tokens. q, k and v are views of one fused row, gate and up too."""

    hidden: torch.Tensor
    """(N, hidden), the residual stream."""
    normed: torch.Tensor
    """(N, hidden), what a half block reads of it."""
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

    def __init__(
        self,
        spec: DecoderSpec,
        *,
        device: torch.device,
        dtype: torch.dtype,
        fixed_tokens: int = FIXED_TOKENS,
    ) -> None:
        layer = spec.layers[0]
        self.fixed_tokens = fixed_tokens
        self._device, self._dtype = device, dtype
        self._heads, self._kv_heads, self._dim = layer.heads, layer.kv_heads, layer.head_dim
        self._widths = {
            "hidden": spec.hidden_size,
            "normed": spec.hidden_size,
            "qkv": (layer.heads + 2 * layer.kv_heads) * layer.head_dim,
            "mixed": layer.heads * layer.head_dim,
            "gate_up": 2 * spec.intermediate_size,
            "activated": spec.intermediate_size,
            "update": spec.hidden_size,
        }
        self._fixed = self._allocate(fixed_tokens)
        self._fixed_views: dict[int, LayerViews] = {}
        self._rows = fixed_tokens
        self._growing = self._fixed

    def views(self, tokens: int) -> LayerViews:
        """The buffers for N tokens: fixed ones, or else valid until a wider step."""
        if tokens <= self.fixed_tokens:
            if tokens not in self._fixed_views:
                self._fixed_views[tokens] = self._cut(self._fixed, tokens)
            return self._fixed_views[tokens]
        if tokens > self._rows:
            self._rows = tokens
            self._growing = self._allocate(tokens)
        return self._cut(self._growing, tokens)

    def predict_bytes(self, tokens: int) -> int:
        """Bytes that are held once a step of so many tokens was seen."""
        growing = tokens if tokens > self.fixed_tokens else 0
        return (self.fixed_tokens + growing) * sum(self._widths.values()) * self._dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes that are held now."""
        held = {id(buffers): buffers for buffers in (self._fixed, self._growing)}
        return sum(buffer.nbytes for buffers in held.values() for buffer in buffers.values())

    def reserve(self, tokens: int) -> None:
        """Takes the memory for the widest step before any step runs."""
        self.views(tokens)

    def _allocate(self, tokens: int) -> dict[str, torch.Tensor]:
        return {
            name: torch.empty(tokens, width, device=self._device, dtype=self._dtype)
            for name, width in self._widths.items()
        }

    def _cut(self, buffers: dict[str, torch.Tensor], tokens: int) -> LayerViews:
        rows = {name: buffer[:tokens] for name, buffer in buffers.items()}
        heads = rows["qkv"].view(tokens, -1, self._dim)
        gate, up = rows["gate_up"].chunk(2, dim=1)
        return LayerViews(
            hidden=rows["hidden"],
            normed=rows["normed"],
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
