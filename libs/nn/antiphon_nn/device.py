"""Names of devices."""

from __future__ import annotations

import torch


def with_index(device: torch.device) -> torch.device:
    """A CUDA device that was named without an index is the thread's current one; others stay.

    Raises:
        ValueError: a CUDA device where torch finds none.
    """
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise ValueError(f"device {device} was asked for and torch finds no CUDA device here")
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())
