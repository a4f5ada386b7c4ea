"""Keys and values in host memory: entries leave the pool and come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .fields import entry_bytes
from .pool import KvPool


@dataclass(frozen=True, slots=True)
class _Parked:
    entries: int
    fields: dict[str, torch.Tensor]
    """Per field ``(entries, rows_per_entry, *row_shape)`` in host memory."""


class HostTier:
    """Parks entries of one pool in at most ``capacity_bytes`` of host memory.

    On a GPU the copies are queued on the current stream, behind the steps launched before and
    ahead of those after, through page-locked memory that torch keeps for the next time; on CPU
    they are done when the calls return.
    """

    def __init__(self, pool: KvPool, *, capacity_bytes: int) -> None:
        self._pool = pool
        self._device = next(iter(pool.views.values())).device
        self._capacity = capacity_bytes // entry_bytes(pool.fields)
        self._parked: dict[int, _Parked] = {}
        self._held = 0
        self._next = 1

    @property
    def room(self) -> int:
        """Entries that can still be parked."""
        return self._capacity - self._held

    def park(self, entries: Sequence[int]) -> int:
        """Copies entries and returns a handle.

        Raises:
            RuntimeError: there is no room for them.
        """
        if len(entries) > self.room:
            raise RuntimeError(f"{len(entries)} entries to park, room for {self.room}")
        index = torch.tensor(entries, dtype=torch.int64).to(self._device, non_blocking=True)
        pinned = self._device.type == "cuda"
        fields = {}
        for name, view in self._pool.views.items():
            host = torch.empty((len(entries), *view.shape[1:]), dtype=view.dtype, pin_memory=pinned)
            host.copy_(view.index_select(0, index), non_blocking=True)
            fields[name] = host
        handle = self._next
        self._next += 1
        self._parked[handle] = _Parked(len(entries), fields)
        self._held += len(entries)
        return handle

    def resume(self, handle: int, first: int, entries: Sequence[int]) -> None:
        """Copies the parked entries from number ``first`` on into ``entries``; drops the handle."""
        parked = self._parked[handle]
        if first + len(entries) != parked.entries:
            raise RuntimeError(
                f"{len(entries)} entries for {parked.entries - first} that are parked"
            )
        index = torch.tensor(entries, dtype=torch.int64).to(self._device, non_blocking=True)
        for name, host in parked.fields.items():
            source = host[first:].to(self._device, non_blocking=True)
            self._pool.views[name].index_copy_(0, index, source)
        self.drop(handle)

    def drop(self, handle: int) -> None:
        """Forgets a handle's entries."""
        self._held -= self._parked.pop(handle).entries
