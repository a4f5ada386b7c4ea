"""Step data on its way from the host to fixed places on the device.

A *group* is a set of fixed device tensors that are written together: the step's producers
take room for what they send, and one copy and one scatter kernel put all of it in place. An
*epoch* is one step's use of one slot of host memory; the slot's event tells when the device has
read it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from antiphon_kernels.publish import ALIGNMENT, Destinations, publish

if TYPE_CHECKING:
    from .cuda.device import Device

MODES = ("packed", "direct")

_NUMPY = {torch.uint8: np.uint8, torch.int32: np.int32, torch.int64: np.int64}


class UploadError(RuntimeError):
    """A producer broke the rules of an epoch: a defect of the engine."""


class UploadGroup:
    """Fixed device tensors that a step may write the beginnings of.

    Only what was taken since ``open`` is written, bit for bit; the tensors' tails, and tensors
    of which nothing was taken, keep their contents.
    """

    def __init__(
        self,
        device: Device,
        name: str,
        targets: Mapping[str, torch.Tensor],
        *,
        slots: int,
        packed: bool,
    ) -> None:
        self.name = name
        self.targets = dict(targets)
        for member, target in self.targets.items():
            if target.device.type != device.device.type:
                raise UploadError(f"{name}.{member} lies on {target.device}, not {device.device}")
        self._device = device
        self._places = {member: place for place, member in enumerate(self.targets)}
        self._destinations = Destinations(list(self.targets.values()))
        self._packed = packed
        room = sum(_aligned(target.nbytes) for target in self.targets.values())
        size = _aligned(self._destinations.header_bytes) + room
        self._arenas = [device.pinned(size) for _ in range(slots)]
        self._hosts = [arena.numpy() for arena in self._arenas]
        self._on_device = torch.zeros(size, dtype=torch.uint8, device=device.device)
        self._slot = -1
        self._owner = (0, 0)
        self._used = 0
        self._taken: dict[str, tuple[int, int]] = {}

    def open(self, slot: int) -> None:
        """Begins an epoch in a slot whose last copy has been read, for this thread and stream."""
        self._slot = slot
        self._owner = threading.get_ident(), self._device.stream()
        self._used = _aligned(self._destinations.header_bytes)
        self._taken.clear()

    def take(self, member: str, count: int) -> np.ndarray:
        """Room for the first ``count`` elements of a member, to be filled before ``publish``."""
        target = self.targets[member]
        if self._slot < 0:
            raise UploadError(f"{self.name}.{member} is taken outside an epoch")
        if member in self._taken:
            raise UploadError(f"{self.name}.{member} is taken twice in one epoch")
        if not 0 <= count <= target.numel():
            raise UploadError(f"{self.name}.{member} holds {target.numel()}, not {count}")
        size = count * target.itemsize
        begin = self._used
        self._taken[member] = (begin, size)
        self._used = _aligned(begin + size)
        return self._hosts[self._slot][begin : begin + size].view(_NUMPY[target.dtype])

    def close(self) -> None:
        """Ends the group's epoch; what was taken and not published is not sent."""
        self._slot = -1

    def publish(self) -> None:
        """Enqueues the copy, and the scatter after it, and ends the group's epoch."""
        if self._slot < 0:
            raise UploadError(f"{self.name} is published outside an epoch")
        if self._owner != (threading.get_ident(), self._device.stream()):
            # The epoch's event would not cover a copy that another stream makes.
            raise UploadError(f"{self.name} is published on another thread or stream than opened")
        arena, host = self._arenas[self._slot], self._hosts[self._slot]
        self.close()
        active = {member: span for member, span in self._taken.items() if span[1]}
        if not active:
            return
        if not self._packed or len(active) == 1:
            for member, (begin, size) in active.items():
                target = self.targets[member].view(-1).view(torch.uint8)
                target[:size].copy_(arena[begin : begin + size], non_blocking=True)
            return
        pairs = host[: self._destinations.header_bytes].view(np.int64).reshape(-1, 2)
        pairs[:] = 0
        for member, span in active.items():
            pairs[self._places[member]] = span
        on_device = self._on_device[: self._used]
        on_device.copy_(arena[: self._used], non_blocking=True)
        publish(on_device, self._destinations)


class StepUploads:
    """The groups of a step and the epochs of their slots.

    Used by one thread. A slot whose end could not be marked is *poisoned*: the device may still
    read it, so its memory is kept and it is never opened again.
    """

    def __init__(self, device: Device, *, slots: int, mode: str) -> None:
        if mode not in MODES:
            raise ValueError(f"upload_mode is {mode!r}; supported: {', '.join(MODES)}")
        self._device = device
        self._packed = mode == "packed"
        self._slots = slots
        self._events = [device.event() for _ in range(slots)]
        self._sealed = [False] * slots
        self._poisoned: set[int] = set()
        self._groups: list[UploadGroup] = []
        self._next = 0
        self._open = -1
        self._thread = threading.get_ident()

    def group(self, name: str, targets: Mapping[str, torch.Tensor]) -> UploadGroup:
        """Declares a group; all groups are declared before the first epoch."""
        group = UploadGroup(self._device, name, targets, slots=self._slots, packed=self._packed)
        self._groups.append(group)
        return group

    def open(self) -> int:
        """Begins the next epoch, after the device has read what its slot held; the slot."""
        if threading.get_ident() != self._thread:
            raise UploadError("step data is uploaded by the thread that made the groups")
        if self._open >= 0:
            raise UploadError(f"epoch of slot {self._open} is not sealed")
        if len(self._poisoned) == self._slots:
            raise UploadError("every slot of step data is poisoned by a failed upload")
        while self._next in self._poisoned:
            self._next = (self._next + 1) % self._slots
        slot = self._next
        if self._sealed[slot]:
            self._events[slot].synchronize()
        for group in self._groups:
            group.open(slot)
        self._open = slot
        return slot

    def seal(self) -> None:
        """Ends the epoch, of a failed step too: marks the point after which its slot may be
        used again. Never waits."""
        slot = self._open
        if slot < 0:
            raise UploadError("no epoch is open")
        self._open = -1
        self._next = (slot + 1) % self._slots
        for group in self._groups:
            group.close()
        try:
            self._events[slot].record()
        except RuntimeError:
            self._poisoned.add(slot)
            raise
        self._sealed[slot] = True


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
