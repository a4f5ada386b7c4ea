"""Small step data from one arena to many fixed addresses in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from antiphon_kernels.publish import reference

ALIGNMENT = 16
"""Payloads begin at multiples of it, so that the kernel moves whole words."""


class Destinations:
    """The fixed tensors that a group of members is published to.

    Attributes:
        tensors: contiguous, any dtype; kept alive here.
        header_bytes: bytes of the (offset, count) pairs at the head of an arena; payloads
            follow, each at a multiple of ``ALIGNMENT``.
        largest_bytes: bytes of the largest tensor.
        addresses: (members) int64 on the tensors' device.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        if not tensors:
            raise ValueError("publish: a group needs members")
        for index, tensor in enumerate(tensors):
            if not tensor.is_contiguous() or tensor.device != tensors[0].device:
                raise ValueError(f"publish: member {index} is no contiguous tensor of the device")
            if tensor.data_ptr() % ALIGNMENT:
                raise ValueError(f"publish: member {index} is not aligned to {ALIGNMENT} bytes")
        self.tensors = tuple(tensors)
        self.header_bytes = 16 * len(tensors)
        self.largest_bytes = max(tensor.nbytes for tensor in tensors)
        self.addresses = torch.tensor(
            [tensor.data_ptr() for tensor in tensors], dtype=torch.int64, device=tensors[0].device
        )


def publish(arena: torch.Tensor, destinations: Destinations) -> None:
    """Copies each member's bytes from the arena to its fixed tensor, bit for bit.

    Bytes of a tensor beyond its member's count stay as they are; a count of 0 leaves the
    tensor alone. Offsets and counts are read on the device and not checked there: the
    producer answers for ``0 <= offset`` and ``count <= nbytes``.

    Args:
        arena: (A) uint8, contiguous and aligned: one (offset, count) pair of int64 per member,
            in bytes from the arena's beginning, then the payloads.
        destinations: where the members live.
    """
    if arena.is_cuda:
        from antiphon_kernels.publish import kernel

        kernel.publish(arena, destinations.addresses, destinations.largest_bytes)
    else:
        reference.publish(arena, destinations.tensors)
