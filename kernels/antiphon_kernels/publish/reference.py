"""Scatter of one arena of step data to its fixed places, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def publish(arena: torch.Tensor, destinations: Sequence[torch.Tensor]) -> None:
    """Copies member g's bytes ``arena[offset_g : offset_g + count_g]`` to its destination.

    Args:
        arena: (A) uint8; it begins with one (offset, count) pair of int64 bytes per member,
            and offsets count from the arena's beginning.
        destinations: tensors, whose first ``count_g`` bytes are overwritten.
    """
    pairs = arena[: 16 * len(destinations)].view(torch.int64).view(-1, 2).tolist()
    for (offset, count), destination in zip(pairs, destinations, strict=True):
        target = destination.view(-1).view(torch.uint8)
        target[:count] = arena[offset : offset + count]
