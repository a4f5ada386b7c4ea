"""Recorded steps by key: one sweep that records them, and what could not be recorded."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from antiphon_core.logs import get_logger

from .device import Device, Graph

_log = get_logger(__name__)

Key = TypeVar("Key", bound=Hashable)


class MovedTensor(RuntimeError):
    """A tensor that a recording reads lies elsewhere now: replaying would read freed memory."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    graph: Graph
    addresses: dict[str, int]


class Recordings(Generic[Key]):
    """Graphs of one kind of step.

    Args:
        debug: whether each replay checks that nothing its recording reads has moved.

    Attributes:
        refused: keys without a recording, and why; of the last :meth:`record`.
        pool_bytes: device memory that recording took.
    """

    def __init__(self, device: Device, *, debug: bool) -> None:
        self._device = device
        self._debug = debug
        self._recorded: dict[Key, _Recorded] = {}
        self.refused: dict[Key, str] = {}
        self.pool_bytes = 0

    def record(
        self,
        keys: Sequence[Key],
        work: Callable[[Key], Callable[[], None]],
        tensors: Callable[[Key], Mapping[str, torch.Tensor]],
    ) -> None:
        """Records ``work(key)`` for each key, in an order that has the largest first.

        A key that runs out of memory or is not supported stays eager. An aborted recording
        ends the sweep, and its pool is not used again: what it holds is in doubt.
        """
        before, _ = self._device.free_and_total()
        self.refused.clear()
        for place, key in enumerate(keys):
            addresses = {name: tensor.data_ptr() for name, tensor in tensors(key).items()}
            try:
                graph = self._device.record(work(key))
            except (torch.OutOfMemoryError, NotImplementedError) as refusal:
                self._refuse(key, f"{type(refusal).__name__}: {refusal}")
            except RuntimeError as aborted:
                self._refuse(key, f"aborted: {aborted}")
                self._device.retire_pool()
                self.refused |= dict.fromkeys(keys[place + 1 :], f"the sweep ended at {key}")
                break
            else:
                self._recorded[key] = _Recorded(graph, addresses)
        after, _ = self._device.free_and_total()
        self.pool_bytes = max(0, before - after)

    def __contains__(self, key: Key) -> bool:
        return key in self._recorded

    def graph(self, key: Key) -> Graph | None:
        """The recording of exactly this key."""
        found = self._recorded.get(key)
        return None if found is None else found.graph

    def replay(self, key: Key, tensors: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        """Enqueues a recorded step; ``tensors`` as they lie now."""
        recorded = self._recorded[key]
        if self._debug:
            _check_addresses(key, recorded.addresses, tensors())
        recorded.graph.replay()

    def drop(self, key: Key) -> None:
        """Forgets one recording."""
        del self._recorded[key]

    def release(self) -> None:
        """Drops all recordings and leaves their memory to the device."""
        self._recorded.clear()
        self._device.retire_pool()

    def _refuse(self, key: Key, reason: str) -> None:
        self.refused[key] = reason
        _log.warning("graph_not_recorded", key=str(key), reason=reason)


def _check_addresses(
    key: Hashable, recorded: dict[str, int], tensors: Mapping[str, torch.Tensor]
) -> None:
    for name, tensor in tensors.items():
        if recorded.get(name) != tensor.data_ptr():
            raise MovedTensor(f"{name} has moved since the step of {key} was recorded")
