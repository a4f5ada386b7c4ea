"""What the Triton launchers share: facts of a device and the options of a launch."""

from __future__ import annotations

from functools import lru_cache

import torch


@lru_cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a device; 8 where kernels are interpreted on the CPU."""
    if device.type != "cuda":
        return 8
    return torch.cuda.get_device_properties(device).multi_processor_count


@lru_cache
def early_launch(device: torch.device) -> bool:
    """Whether a kernel may start while the one before it ends.

    Programmatic dependent launch (sm_90 and later). Two rules keep it right. Every program of
    such a kernel runs ``gdc_wait`` before it touches memory that queued work writes, and before
    it ends. It lets the next kernel start only after that, so that no more than one unfinished
    kernel lies before any program, and waiting for that one means waiting for all.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
