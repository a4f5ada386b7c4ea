"""Checkpoints saved from the decoder without its head, whose names lack ``model.``"""

from __future__ import annotations

import torch
from antiphon_kernels.quant_linear import PackedWeight
from antiphon_nn.checkpoint import Checkpoint, open_checkpoint

_PREFIX = "model."
_HEAD = "score."
"""A classification head stands beside the decoder in either form."""


class BareCheckpoint(Checkpoint):
    """Gives another checkpoint's tensors the names that they have in a whole model."""

    def __init__(self, inner: Checkpoint) -> None:
        super().__init__()
        self._inner = inner
        self.path = inner.path
        self.config = inner.config
        self._names = frozenset(map(_full, inner.names()))

    def names(self) -> frozenset[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return self._inner.shape(_bare(name))

    def _tensor(self, name: str) -> torch.Tensor:
        return self._inner.tensor(_bare(name))

    def _linear(self, name: str) -> PackedWeight:
        return self._inner.linear(_bare(name))


def open_model(path: str) -> Checkpoint:
    """Opens a checkpoint whose tensors then have the names of a whole model.

    Raises:
        CheckpointError: see ``open_checkpoint``.
    """
    checkpoint = open_checkpoint(path)
    return BareCheckpoint(checkpoint) if "embed_tokens.weight" in checkpoint else checkpoint


def _full(name: str) -> str:
    return name if name.startswith(_HEAD) else _PREFIX + name


def _bare(name: str) -> str:
    return name.removeprefix(_PREFIX)
