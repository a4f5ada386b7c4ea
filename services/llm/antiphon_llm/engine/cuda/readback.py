"""Results on their way from the device to pinned host memory."""

from __future__ import annotations

import numpy as np
import torch

from .device import Device, Event

_ALIGNMENT = 64
_NUMPY = {torch.int32: np.int32, torch.float64: np.float64}


class Readback:
    """Host memory of one step's results, and the event after which they are there.

    The memory is locked once and grows, counted, when a step returns more than any before.
    """

    def __init__(self, device: Device, size: int) -> None:
        self._device = device
        self._memory = device.pinned(size)
        self._used = 0
        self._event: Event = device.event()
        self.grown = 0

    def begin(self) -> None:
        """Begins a step: what was read before is void."""
        self._used = 0

    def copy(self, source: torch.Tensor) -> np.ndarray:
        """Enqueues a copy of a contiguous device tensor; valid after :meth:`wait`."""
        begin = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        self._used = begin + source.nbytes
        if self._used > len(self._memory):
            # Earlier copies of this step keep the old memory alive through their arrays.
            self._memory = self._device.pinned(2 * self._used)
            begin, self._used = 0, source.nbytes
            self.grown += 1
        target = self._memory[begin : begin + source.nbytes]
        target.copy_(source.contiguous().view(-1).view(torch.uint8), non_blocking=True)
        return target.numpy().view(_NUMPY[source.dtype]).reshape(source.shape)

    def seal(self) -> None:
        """Marks the point after the last copy."""
        self._event.record()

    def wait(self) -> None:
        """Waits for this step's copies alone."""
        self._event.synchronize()
