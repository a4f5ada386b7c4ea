"""Which native kernels this process uses, loaded at the first call."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from antiphon_kernels.cpu import build
from antiphon_kernels.cpu.binding import Native

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_native: Native | None = None
_reason = ""
_threads = torch.get_num_threads()
_products = "float32"


def native() -> Native | None:
    """The kernels for this processor, built or loaded at the first call; None without any."""
    global _native, _reason
    if _native is not None or _reason:
        return _native
    with _lock:
        if _native is None and not _reason:
            started = time.monotonic()
            isa = build.supported_isas()[0]
            try:
                _native = Native(isa, _threads)
            except (build.BuildError, OSError) as error:
                _reason = str(error)
                _log.warning("native kernels unavailable: %s", _reason)
            else:
                _log.info("native kernels %s ready in %.1f s", isa, time.monotonic() - started)
    return _native


def unavailable_reason() -> str:
    """Why :func:`native` is None; empty when it is not."""
    return _reason


@contextmanager
def use(implementation: str) -> Iterator[None]:
    """Runs a test or benchmark on another path: an instruction set, or ``reference``."""
    global _native, _reason
    saved = native(), _reason
    _native, _reason = (
        (None, "reference chosen")
        if implementation == "reference"
        else (Native(implementation, _threads), "")
    )
    try:
        yield
    finally:
        _native, _reason = saved
        set_threads(_threads)


def set_threads(count: int) -> None:
    """Sets the team size of the native kernels."""
    global _threads
    _threads = count
    if _native is not None:
        _native.threads = count


def set_products(products: str) -> None:
    """Sets the arithmetic of quantised products, ``float32`` or ``int16``."""
    global _products
    _products = products


def products() -> str:
    """The arithmetic of quantised products."""
    return _products


def threads() -> int:
    """The team size of the native kernels."""
    return _threads
