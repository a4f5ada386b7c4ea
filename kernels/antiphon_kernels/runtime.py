"""What every operation shares: thread count, chosen implementations, counted fallbacks."""

from __future__ import annotations

import logging

import torch

from antiphon_kernels.cpu import build, library

_log = logging.getLogger(__name__)

OPERATIONS = (
    "add_rms_norm",
    "gather_rows",
    "gelu_tanh_mul",
    "lora",
    "pack",
    "paged_attention",
    "philox",
    "quant_linear",
    "rms_norm",
    "rope",
    "silu_mul",
    "store_kv",
)

fallbacks: dict[str, int] = {}
"""Calls that ran a reference instead of a kernel, keyed ``operation: reason``."""


def native_for(operation: str, *tensors: torch.Tensor) -> library.Native | None:
    """The native kernels when they can run on these fp32 tensors, else None and a count."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            return fall_back(operation, f"device {tensor.device.type}")
        if tensor.dtype != torch.float32:
            return fall_back(operation, f"dtype {str(tensor.dtype).removeprefix('torch.')}")
    native = library.native()
    return native if native is not None else fall_back(operation, library.unavailable_reason())


def fall_back(operation: str, reason: str) -> None:
    """Counts one use of a reference; the first of each kind is logged."""
    key = f"{operation}: {reason}"
    if key not in fallbacks:
        _log.warning("kernel fallback: %s runs its torch reference (%s)", operation, reason)
    fallbacks[key] = fallbacks.get(key, 0) + 1


def implementations() -> dict[str, str]:
    """What a float32 CPU call of each operation runs, such as ``cpu avx2`` or ``reference``."""
    native = library.native()
    if native is None:
        return dict.fromkeys(OPERATIONS, f"reference ({library.unavailable_reason()})")
    chosen: dict[str, str] = dict.fromkeys(OPERATIONS, f"cpu {native.isa}")
    chosen["quant_linear"] += f" {products()}"
    return chosen


def set_threads(count: int) -> None:
    """Sets the compute threads of this process.

    With native kernels they have all of them and torch keeps one: its OpenMP workers spin for
    milliseconds after every parallel operation and would take the cores from the kernels.
    Without native kernels torch has them all.
    """
    if count < 1:
        raise ValueError(f"threads must be at least 1, got {count}")
    torch.set_num_threads(1 if library.native() else count)
    library.set_threads(count)


PRODUCTS = ("float32", "int16", "auto")


def set_products(mode: str) -> None:
    """Sets the arithmetic of this process's products with quantised weights on CPU.

    Args:
        mode: ``float32`` multiplies unrounded activations; ``int16`` rounds them to 16 bits per
            row and block of 32, see :mod:`antiphon_kernels.quant_linear`; ``auto`` is int16 where
            the processor has instructions for it. A process starts with float32.

    Raises:
        ValueError: an unknown mode.
    """
    if mode not in PRODUCTS:
        raise ValueError(f"products must be one of {', '.join(PRODUCTS)}, got {mode!r}")
    if mode == "auto":
        native = library.native()
        mode = "int16" if native is not None and native.isa in build.BYTE_DOT_ISAS else "float32"
    library.set_products(mode)


def products() -> str:
    """The arithmetic of quantised products now: ``float32`` or ``int16``."""
    return library.products()


def threads() -> int:
    """The thread count that kernels use now."""
    return library.threads()
