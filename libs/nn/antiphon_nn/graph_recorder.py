"""Recording of device work as CUDA graphs that share one memory pool."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

WARM_UPS = 2
"""Runs of a function before it is recorded: lazy initialisation must not be captured."""


class GraphRecorder:
    """Records on one side stream of a CUDA device.

    Args:
        device: with its index, or the current CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool: Any = None

    def record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Runs ``work`` WARM_UPS times and captures it; no garbage collection may run meanwhile.

        Raises what ``work`` raises, and RuntimeError for what cannot be captured.
        """
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                work()
        current.wait_stream(self._stream)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # As antiphon_core.collector.paused, which this package must not import.
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.graph(
                graph,
                pool=self._pool,
                stream=self._stream,
                capture_error_mode="thread_local",
            ):
                work()
        finally:
            if collecting:
                gc.enable()
        return graph

    def retire_pool(self) -> None:
        """Leaves the pool to the recordings that are still alive; later ones share a new pool.

        torch refuses a pool again whose recordings are all gone.
        """
        self._pool = None
