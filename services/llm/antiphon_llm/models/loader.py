"""Reading a decoder's parts from a checkpoint, in the storage that its device wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from antiphon_nn.layers import DenseEmbedding, DenseLinear, Embedding, Linear, Projection, RMSNorm

from .config_reader import UnsupportedConfig
from .spec import DecoderSpec

if TYPE_CHECKING:
    from antiphon_nn.checkpoint import Checkpoint


class Loader:
    """Reads a decoder's parts in the storage that its device wants, and checks them against
    the spec."""

    def __init__(
        self, spec: DecoderSpec, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._spec = spec
        self._checkpoint = checkpoint
        self._device = device
        self._dtype = dtype
        self.packed = device.type == "cpu" and dtype == torch.float32

    def embedding(self, name: str) -> Embedding | DenseEmbedding:
        """The token embeddings with the family's scale."""
        shape = (self._spec.vocab_size, self._spec.hidden_size)
        stored = tuple(self._checkpoint.shape(f"{name}.weight"))
        if stored != shape:
            raise UnsupportedConfig(
                f"{self._spec.family}: embedding is {stored}, the config says {shape}"
            )
        if self.packed:
            packed = self._checkpoint.linear(f"{name}.weight")
            return Embedding(packed, self._spec.embedding_scale)
        dense = self._checkpoint.tensor(f"{name}.weight").to(self._device, self._dtype)
        return DenseEmbedding(dense, self._spec.embedding_scale)

    def norm(self, name: str) -> RMSNorm:
        """An RMSNorm with the family's convention."""
        weight = self._checkpoint.tensor(f"{name}.weight").to(self._device)
        return RMSNorm(weight, self._spec.norm_eps, plus_one=self._spec.norm_plus_one)

    def linear(self, names: Sequence[str], sizes: Sequence[int], bias: bool) -> Projection:
        """One projection, or several of one input, whose outputs must have these sizes."""
        for name in names:
            if (f"{name}.bias" in self._checkpoint) is not bias:
                raise UnsupportedConfig(
                    f"{self._spec.family}: the config says {name} has "
                    f"{'a' if bias else 'no'} bias, the checkpoint disagrees"
                )
        linear: Projection
        if self.packed:
            linear = Linear.load(self._checkpoint, *names)
        else:
            linear = DenseLinear.load(
                self._checkpoint, *names, device=self._device, dtype=self._dtype
            )
        if linear.sizes != list(sizes):
            raise UnsupportedConfig(
                f"{self._spec.family}: {', '.join(names)} have {linear.sizes} outputs, "
                f"the config says {list(sizes)}"
            )
        return linear
