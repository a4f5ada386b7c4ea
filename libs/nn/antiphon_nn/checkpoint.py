"""Opening a checkpoint: one interface over GGUF files and safetensors directories.

Names, shapes and values are Hugging Face's: q and k rows in half-rotation order, Gemma norms
as w (the layer adds the one), ``model.layers.0.self_attn.q_proj.weight``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from antiphon_kernels.quant_linear import PackedWeight

from antiphon_nn.errors import CheckpointError

LISTED_NAMES = 20


class Checkpoint(ABC):
    """An open checkpoint.

    Attributes:
        path: the file or directory.
        config: the model's configuration in the vocabulary of ``config.json``.
    """

    path: Path
    config: dict[str, Any]

    def __init__(self) -> None:
        self._read: set[str] = set()

    @abstractmethod
    def names(self) -> frozenset[str]:
        """Names of all tensors."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, (output, input) of a matrix."""

    @abstractmethod
    def _tensor(self, name: str) -> torch.Tensor: ...

    @abstractmethod
    def _linear(self, name: str) -> PackedWeight: ...

    def _integers(self, name: str) -> torch.Tensor:
        raise CheckpointError(self.path, f"cannot read whole numbers such as {name!r}")

    def __contains__(self, name: str) -> bool:
        return name in self.names()

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor in fp32, dequantised where it must be.

        Raises:
            CheckpointError: there is no tensor of this name.
        """
        self._take(name)
        return self._tensor(name)

    def rows(self, name: str, indices: Sequence[int]) -> torch.Tensor:
        """Some rows of a matrix in fp32, (indices, input); no memory is taken for the others
        where the file can be read so.

        Raises:
            CheckpointError: there is no tensor of this name, or it has no such row.
        """
        self._take(name)
        if not all(0 <= index < self.shape(name)[0] for index in indices):
            raise CheckpointError(
                self.path, f"tensor {name!r} of shape {self.shape(name)} has no rows {indices}"
            )
        return self._some_rows(name, indices)

    def _some_rows(self, name: str, indices: Sequence[int]) -> torch.Tensor:
        return self._tensor(name)[list(indices)]

    def integers(self, name: str) -> torch.Tensor:
        """A tensor of whole numbers, int64.

        Raises:
            CheckpointError: there is no tensor of this name, or it holds something else.
        """
        self._take(name)
        return self._integers(name)

    def linear(self, name: str) -> PackedWeight:
        """A weight matrix, packed in the format that the checkpoint has.

        Raises:
            CheckpointError: there is no tensor of this name, or it is no matrix.
        """
        self._take(name)
        if len(self.shape(name)) != 2:
            raise CheckpointError(
                self.path, f"tensor {name!r} has shape {self.shape(name)}, expected a matrix"
            )
        return self._linear(name)

    def check_coverage(self, ignored: Iterable[str] = ()) -> None:
        """Refuses a checkpoint with tensors that nobody has read.

        Args:
            ignored: regular expressions of names that the model leaves out on purpose.
        """
        rules = [re.compile(rule) for rule in ignored]
        left = sorted(
            name
            for name in self.names() - self._read
            if not any(rule.fullmatch(name) for rule in rules)
        )
        if left:
            raise CheckpointError(
                self.path, f"{len(left)} tensors have no place in the model: {_listed(left)}"
            )

    def _take(self, name: str) -> None:
        if name not in self.names():
            raise CheckpointError(self.path, f"has no tensor {name!r}")
        self._read.add(name)


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Opens a ``.gguf`` file or a directory with ``config.json`` and safetensors.

    Raises:
        CheckpointError: the path is neither, or what is there is damaged or not supported.
    """
    from antiphon_nn.gguf_checkpoint import GgufCheckpoint
    from antiphon_nn.safetensors_checkpoint import SafetensorsCheckpoint

    path = Path(path)
    if path.is_dir():
        return SafetensorsCheckpoint(path)
    if not path.exists():
        raise CheckpointError(
            path, "does not exist; expected a .gguf file or a directory with safetensors"
        )
    if path.suffix in (".bin", ".pt", ".pth"):
        raise CheckpointError(
            path,
            "is a pickle, which is never loaded; convert it with transformers' "
            "save_pretrained(..., safe_serialization=True) and pass the directory",
        )
    if path.suffix == ".safetensors":
        raise CheckpointError(path, "is one weight file; pass its directory, with config.json")
    return GgufCheckpoint(path)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:LISTED_NAMES])
    return shown if len(names) <= LISTED_NAMES else f"{shown}, and {len(names) - LISTED_NAMES} more"
