"""Reading a codec's checkpoint: every tensor by name and shape, nothing left over."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from antiphon_nn.checkpoint import Checkpoint, open_checkpoint
from antiphon_nn.config_reader import ConfigReader
from antiphon_nn.errors import CheckpointError


class CodecWeights:
    """An open checkpoint whose tensors are asked for with the shape that they must have.

    Attributes:
        path: the directory.
        config: its config.json.
    """

    def __init__(self, directory: Path | str) -> None:
        self._checkpoint: Checkpoint = open_checkpoint(directory)
        self.path = self._checkpoint.path
        family = str(self._checkpoint.config.get("model_type", "codec"))
        self.config = ConfigReader(self._checkpoint.config, family)

    def leave(self, *keys: str) -> None:
        """Marks keys of config.json that cannot change what the codec computes."""
        for key in keys:
            self.config.raw(key, None)

    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor whose length is the checkpoint's to say.

        Raises:
            CheckpointError: there is no tensor of this name.
        """
        if name not in self._checkpoint:
            raise CheckpointError(self.path, f"has no tensor {name!r}")
        return self._checkpoint.shape(name)

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor in fp32.

        Raises:
            CheckpointError: it is missing, or has another shape.
        """
        self._expect(name, shape)
        return self._checkpoint.tensor(name)

    def integers(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor of whole numbers, int64; errors as :meth:`tensor`."""
        self._expect(name, shape)
        return self._checkpoint.integers(name)

    def normed(self, prefix: str, shape: tuple[int, ...]) -> torch.Tensor:
        """``<prefix>.weight``, or the product g v / ||v|| where it is stored weight-normed.

        ``parametrizations.weight.original0`` is g and ``original1`` v; older files have
        ``weight_g`` and ``weight_v``. The norm is over all axes but the first.
        """
        for g, v in (
            ("parametrizations.weight.original0", "parametrizations.weight.original1"),
            ("weight_g", "weight_v"),
        ):
            if f"{prefix}.{v}" in self:
                gain = self.tensor(f"{prefix}.{g}", (shape[0], *(1,) * (len(shape) - 1)))
                direction = self.tensor(f"{prefix}.{v}", shape)
                norm = direction.flatten(1).norm(dim=1).view(gain.shape)
                return gain * direction / norm
        return self.tensor(f"{prefix}.weight", shape)

    def finish(self, ignored: Iterable[str] = ()) -> None:
        """Refuses keys and tensors that nothing has read.

        Args:
            ignored: regular expressions of tensor names that are left out on purpose.

        Raises:
            CheckpointError: there are such keys or tensors; the message lists them.
        """
        unread = self.config.unread()
        if unread:
            raise CheckpointError(
                self.path / "config.json", f"has keys that are not implemented: {', '.join(unread)}"
            )
        self._checkpoint.check_coverage(ignored)

    def _expect(self, name: str, shape: tuple[int, ...]) -> None:
        if name in self._checkpoint and self._checkpoint.shape(name) != shape:
            raise CheckpointError(
                self.path,
                f"tensor {name!r} has shape {self._checkpoint.shape(name)}, expected {shape}",
            )
