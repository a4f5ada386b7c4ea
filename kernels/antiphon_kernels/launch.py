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

    Programmatic dependent launch (sm_90 and later). The rule that keeps it right: every
    program of such a kernel runs ``gdc_wait`` before it touches memory that queued work
    writes, and before it ends, so that waiting for one kernel means waiting for all before it.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
