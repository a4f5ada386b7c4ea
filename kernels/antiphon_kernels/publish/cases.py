"""Groups of members for tests of the packed scatter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from antiphon_kernels.publish import ALIGNMENT, Destinations

CASES: tuple[tuple[tuple[int, int], ...], ...] = (
    ((0, 16),),
    ((4, 4), (1, 9), (7, 7)),
    ((4096, 5000), (0, 64), (8209, 9000), (12, 12)),
)
"""(bytes published, bytes of the destination) of each member."""


def pack(destinations: Destinations, payloads: Sequence[torch.Tensor]) -> torch.Tensor:
    """The CPU arena that publishes these uint8 payloads, one for each destination."""
    pairs = []
    offset = -(-destinations.header_bytes // ALIGNMENT) * ALIGNMENT
    for payload in payloads:
        pairs.append((offset, payload.numel()))
        offset += -(-payload.numel() // ALIGNMENT) * ALIGNMENT
    arena = torch.zeros(offset, dtype=torch.uint8)
    arena[: destinations.header_bytes] = torch.tensor(pairs).view(-1).view(torch.uint8)
    for (begin, count), payload in zip(pairs, payloads, strict=True):
        arena[begin : begin + count] = payload
    return arena
