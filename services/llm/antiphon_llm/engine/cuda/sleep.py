"""Giving a device's memory back while nothing runs, and taking it again."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from antiphon_core.logs import get_logger
from antiphon_core.memory import available_bytes

_log = get_logger(__name__)


class SleepingMemory:
    """Tensors whose storage can be taken away and given back under them.

    A storage is emptied in place, so that every view of it, the layers' and the caches', is
    valid again after :meth:`restore`, at whatever address the storage has then. Storages that
    cannot be emptied, a host pool's, keep their memory and lose their contents all the same.

    Attributes:
        pageable_bytes: weights that were kept in pageable memory because locking as much would
            have left the machine too little.
    """

    def __init__(self, weights: Iterable[torch.Tensor], discarded: Iterable[torch.Tensor]) -> None:
        """``weights`` are kept on the host; the contents of ``discarded`` are dropped."""
        self._weights = _storages(weights)
        self._discarded = _storages(discarded)
        self._sizes: dict[int, int] = {}
        self._kept: list[torch.Tensor] = []
        self.pageable_bytes = 0

    @property
    def asleep(self) -> bool:
        """Whether the storages are empty."""
        return bool(self._sizes)

    @property
    def bytes_released(self) -> int:
        """Memory that the sleep gave back."""
        storages = (*self._weights, *self._discarded)
        return sum(self._sizes.get(id(storage), 0) - storage.nbytes() for storage in storages)

    def release(self) -> None:
        """Copies the weights to the host and empties all storages. Nothing may be running."""
        if self.asleep:
            return
        for storage in self._weights:
            self._kept.append(self._copied(storage))
        for storage in (*self._weights, *self._discarded):
            self._sizes[id(storage)] = storage.nbytes()
            if storage.resizable():
                storage.resize_(0)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def restore(self) -> None:
        """Allocates the storages, copies the weights back and zeroes the rest.

        Raises torch.OutOfMemoryError, and stays asleep, when the memory is not there.
        """
        if not self.asleep:
            return
        storages = [*self._weights, *self._discarded]
        try:
            for storage in storages:
                if storage.resizable():
                    storage.resize_(self._sizes[id(storage)])
        except torch.OutOfMemoryError:
            for storage in storages:
                if storage.resizable():
                    storage.resize_(0)
            raise
        for storage, kept in zip(self._weights, self._kept, strict=True):
            _bytes_of(storage).copy_(kept, non_blocking=True)
        for storage in self._discarded:
            _bytes_of(storage).zero_()
        if torch.cuda.is_initialized():
            # Copies from locked memory are still reading what is dropped next.
            torch.cuda.synchronize()
        self._kept.clear()
        self._sizes.clear()

    def _copied(self, storage: torch.UntypedStorage) -> torch.Tensor:
        size = storage.nbytes()
        locked = storage.device.type == "cuda" and available_bytes() >= 2 * size
        if not locked:
            self.pageable_bytes += size
        host = torch.empty(size, dtype=torch.uint8, pin_memory=locked)
        return host.copy_(_bytes_of(storage))


def _storages(tensors: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    """Each storage once; a tied head shares the embedding's."""
    found = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
    return [tensor.untyped_storage() for tensor in found.values()]


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
