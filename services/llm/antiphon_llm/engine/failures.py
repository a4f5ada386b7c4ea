"""What a failure means: one classifier for every loop of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import torch

from antiphon_llm.kvcache.allocator import PoolExhausted


class FailureKind(IntEnum):
    """Worst first: of an error and its causes, the worst counts."""

    MEMORY_EXHAUSTED = 0
    """Memory ran out again after everything that can be given up was: sticky, the process exits."""
    POISONED = 1
    """The device's context is lost, such as after an illegal address: sticky, the process exits."""
    OUT_OF_MEMORY = 2
    """The machine or the card had no memory for a step: the ladder of MemoryPressure."""
    POOL_DENIED = 3
    """A pool's own bound refused: no shortage of the machine's memory."""
    INFRASTRUCTURE = 4
    """Something under the engine failed and may recover: files, sockets, peers."""
    REQUEST = 5
    """Nothing but the requests at hand is affected."""


class MemoryExhausted(RuntimeError):
    """Out of memory with the door closed and no step done since: there is nothing left to try."""


_KINDS: tuple[tuple[FailureKind, tuple[type[BaseException], ...]], ...] = (
    (FailureKind.MEMORY_EXHAUSTED, (MemoryExhausted,)),
    (FailureKind.OUT_OF_MEMORY, (MemoryError, torch.OutOfMemoryError)),
    (FailureKind.POOL_DENIED, (PoolExhausted,)),
    (FailureKind.INFRASTRUCTURE, (OSError, EOFError)),
)
"""OSError includes TimeoutError and ConnectionError."""

_POISONED_WORDS = (
    "illegal memory access",
    "illegal address",
    "illegal instruction",
    "misaligned address",
    "device-side assert",
    "unspecified launch failure",
    "uncorrectable ecc",
    "context is destroyed",
)
_OUT_OF_MEMORY_WORDS = (
    "out of memory",
    "can't allocate memory",
    "cuda_error_out_of_memory",
    "cublas_status_alloc_failed",
)
_INFRASTRUCTURE_WORDS = ("nccl error", "cuda driver error", "cublas_status_not_initialized")


def classify(error: BaseException) -> FailureKind:
    """The kind of an error, its causes considered."""
    return min(map(_kind_of_one, _chain(error)))


def error_reason(kind: FailureKind) -> str:
    """The ErrorReason that a request which such a failure ends is given."""
    if kind in (FailureKind.OUT_OF_MEMORY, FailureKind.POOL_DENIED):
        return "MEMORY_PRESSURE"
    return "INTERNAL" if kind is FailureKind.REQUEST else "WORKER_DIED"


def _kind_of_one(error: BaseException) -> FailureKind:
    words = str(error).lower()
    if any(word in words for word in _POISONED_WORDS):
        return FailureKind.POISONED
    for kind, types in _KINDS:
        if isinstance(error, types):
            return kind
    if isinstance(error, RuntimeError):
        # torch tells most of what the driver and the allocators say in words alone.
        if any(word in words for word in _OUT_OF_MEMORY_WORDS):
            return FailureKind.OUT_OF_MEMORY
        if any(word in words for word in _INFRASTRUCTURE_WORDS):
            return FailureKind.INFRASTRUCTURE
    return FailureKind.REQUEST


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, then what it was raised from or while handling."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
