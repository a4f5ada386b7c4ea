"""Low-rank adapters of a decoder: which tokens go through which, and where their matrices lie.

LoRA (Hu et al., 2021): a product ``y = x W^T`` gets ``s (x A^T) B^T`` added, with A (r, in) and
B (out, r). Every token of a step names its adapter by slot, so one step serves many adapters;
slot 0 is the model itself, and its tokens are computed as if there were no adapters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from antiphon_kernels.lora import DeviceBank, HostBank, LowRank, lora

from .spec import DecoderSpec, LayerSpec

Bank = HostBank | DeviceBank

PARTS = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "output": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""The projections of a block and the modules that each is made of, in the order of its outputs."""
MODULES = tuple(module for modules in PARTS.values() for module in modules)
"""What an adapter may change."""

LayerWeights = Mapping[str, LowRank]
"""An adapter's share in one layer, by module."""


@dataclass(frozen=True, slots=True)
class AdaptedTokens:
    """The adapters of a step's tokens."""

    slots: torch.Tensor
    """int32 (N), 0 for the model itself."""
    active: torch.Tensor | None = None
    """int32 (J): each slot that ``slots`` may name, and zeros; read on CUDA only."""

    def select(self, tokens: torch.Tensor) -> AdaptedTokens:
        """Those of some tokens, int64 (R)."""
        return AdaptedTokens(self.slots.index_select(0, tokens), self.active)


@dataclass(frozen=True, slots=True)
class ModuleShape:
    """One module's product."""

    inputs: int
    outputs: int


def module_shapes(spec: DecoderSpec, layer: LayerSpec) -> dict[str, ModuleShape]:
    """The products of one layer by module."""
    hidden, wide = spec.hidden_size, spec.intermediate_size
    heads, kv_heads = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
    return {
        "q_proj": ModuleShape(hidden, heads),
        "k_proj": ModuleShape(hidden, kv_heads),
        "v_proj": ModuleShape(hidden, kv_heads),
        "o_proj": ModuleShape(heads, hidden),
        "gate_proj": ModuleShape(hidden, wide),
        "up_proj": ModuleShape(hidden, wide),
        "down_proj": ModuleShape(wide, hidden),
    }


class LayerAdapters:
    """The adapters of one layer: a bank for each of its projections."""

    def __init__(self, banks: Mapping[str, Bank]) -> None:
        self.banks = dict(banks)

    def add(
        self,
        projection: str,
        x: torch.Tensor,
        out: torch.Tensor,
        adapted: AdaptedTokens,
    ) -> None:
        """Adds each token's adapter to a projection's outputs of x."""
        lora(x, self.banks[projection], adapted.slots, out, adapted.active)


class ModelAdapters:
    """The adapters of a decoder by slot, from 1 on.

    On CPU an adapter keeps the memory that it was read into; elsewhere all slots have memory of
    their own, for ``rank_max``, taken once. Either way a table lies where it lies: recorded steps
    read what is in it when they run. No step may run while a slot changes.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        *,
        count: int,
        rank_max: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.slots = count
        self.rank_max = rank_max

        def bank(shapes: Sequence[ModuleShape]) -> Bank:
            inputs, sizes = shapes[0].inputs, [shape.outputs for shape in shapes]
            if device.type == "cpu" and dtype == torch.float32:
                return HostBank(count + 1, inputs, sizes)
            return DeviceBank(count + 1, inputs, sizes, rank=rank_max, dtype=dtype, device=device)

        self.layers = []
        for layer in spec.layers:
            shapes = module_shapes(spec, layer)
            self.layers.append(
                LayerAdapters(
                    {
                        projection: bank([shapes[module] for module in modules])
                        for projection, modules in PARTS.items()
                    }
                )
            )

    @property
    def nbytes(self) -> int:
        """Bytes that are taken whatever is loaded."""
        banks = (bank for layer in self.layers for bank in layer.banks.values())
        return sum(bank.nbytes for bank in banks if isinstance(bank, DeviceBank))

    def install(self, slot: int, weights: Sequence[LayerWeights]) -> None:
        """Puts an adapter into a slot: one mapping for each layer."""
        for layer, own in zip(self.layers, weights, strict=True):
            for projection, modules in PARTS.items():
                layer.banks[projection].set(slot, [own.get(module) for module in modules])

    def remove(self, slot: int) -> None:
        """Empties a slot."""
        for layer in self.layers:
            for bank in layer.banks.values():
                bank.clear(slot)
