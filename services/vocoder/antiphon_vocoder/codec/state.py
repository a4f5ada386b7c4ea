"""Device state of streams: tensors of fixed addresses with one row a slot."""

from __future__ import annotations

from collections.abc import Mapping

import torch


class SlotState:
    """State of one direction of a codec, all of it allocated once.

    Each tensor has ``slots + 1`` rows. The last is the null row: what masked rows would write
    goes there, and padding rows read it. A slot is ready for a new stream when its row is zero.

    Attributes:
        slots: streams.
        max_frames: frames that a step may have.
        tensors: name to (slots + 1, ...).
    """

    def __init__(self, slots: int, max_frames: int, tensors: Mapping[str, torch.Tensor]) -> None:
        if slots < 1 or max_frames < 1:
            raise ValueError(f"slots and max_frames must be >= 1, got {slots} and {max_frames}")
        self.slots = slots
        self.max_frames = max_frames
        self.tensors = dict(tensors)

    @property
    def null_row(self) -> int:
        """The row that belongs to no slot."""
        return self.slots

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of one row."""
        return self.nbytes // (self.slots + 1)

    def reset(self, rows: torch.Tensor) -> None:
        """Zeroes rows (N,) int64 on the state's device, so that they equal fresh ones."""
        for tensor in self.tensors.values():
            tensor.index_fill_(0, rows, 0)

    def read(self, name: str, rows: torch.Tensor | None, count: int) -> torch.Tensor:
        """The rows (count, ...) of one tensor: copies, or a view where row i is slot i."""
        tensor = self.tensors[name]
        return tensor[:count] if rows is None else tensor.index_select(0, rows)

    def targets(self, rows: torch.Tensor | None, exec_mask: torch.Tensor) -> torch.Tensor:
        """Where each row writes (B,) int64: its slot, or the null row where it is masked."""
        if rows is None:
            rows = torch.arange(exec_mask.shape[0], device=exec_mask.device)
        return torch.where(exec_mask, rows, self.null_row)

    def write(self, name: str, targets: torch.Tensor, value: torch.Tensor) -> None:
        """Stores rows (B, ...) at ``targets``."""
        self.tensors[name].index_copy_(0, targets, value)
