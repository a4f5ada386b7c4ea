"""Who owns memory, threads and device objects, and how they are let go."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from antiphon_core.logs import get_logger

_log = get_logger(__name__)


@dataclass(slots=True)
class _Owner:
    name: str
    bytes: int
    holder: object | None
    """Kept alive until it is released; then only ``watch`` looks at it."""
    watch: weakref.ref[object]
    release: Callable[[], None] | None


class Owners:
    """Registered as they are made, released newest first: what reads goes before what is read."""

    def __init__(self) -> None:
        self._owners: list[_Owner] = []

    def register(
        self,
        name: str,
        holder: object,
        *,
        nbytes: int = 0,
        release: Callable[[], None] | None = None,
    ) -> None:
        """Takes note of an object that holds ``nbytes``; ``release`` ends what it has running."""
        self._owners.append(_Owner(name, nbytes, holder, weakref.ref(holder), release))

    def release(self) -> None:
        """Releases every owner, whatever happens on the way; raises the first failure."""
        failure: Exception | None = None
        for owner in reversed(self._owners):
            try:
                if owner.release is not None:
                    owner.release()
            except Exception as error:
                _log.exception("release_failed", owner=owner.name)
                failure = failure or error
            owner.release = owner.holder = None
        if failure is not None:
            raise failure

    def sweep(self) -> dict[str, int]:
        """Bytes by name of the released owners that something still refers to."""
        gc.unfreeze()
        gc.collect()
        return {owner.name: owner.bytes for owner in self._owners if owner.watch() is not None}
