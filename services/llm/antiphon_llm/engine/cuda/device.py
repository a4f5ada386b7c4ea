"""What the runner needs of a device beside tensors: pinned memory, events, graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from antiphon_core.memory import available_bytes
from antiphon_nn.graph_recorder import WARM_UPS, GraphRecorder


class Event(Protocol):
    """A point in the device's work."""

    def record(self) -> None:
        """Marks what has been enqueued so far."""
        ...

    def synchronize(self) -> None:
        """Waits until the marked work is done, and for nothing else."""
        ...


class Graph(Protocol):
    """Recorded device work."""

    def replay(self) -> None:
        """Enqueues the recorded work."""
        ...


class Device(Protocol):
    """A device with one stream of work."""

    device: torch.device
    runs_behind: bool
    """Whether enqueued work runs while the host goes on."""

    def event(self) -> Event:
        """A new event."""
        ...

    def stream(self) -> int:
        """Which stream work is enqueued on now."""
        ...

    def pinned(self, size: int) -> torch.Tensor:
        """uint8 (size) of host memory that copies to the device without a stop."""
        ...

    def record(self, work: Callable[[], None]) -> Graph:
        """Runs ``work`` WARM_UPS times and records it. Raises what the recording raises."""
        ...

    def retire_pool(self) -> None:
        """Records what follows in new memory: recordings so far were dropped or are in doubt."""
        ...

    def free_and_total(self) -> tuple[int, int]:
        """Bytes that the device can still give, and that it has."""
        ...

    def allocated(self) -> tuple[int, int]:
        """Bytes that tensors of this process hold, and the most since :meth:`reset_peak`."""
        ...

    def reset_peak(self) -> None:
        """Forgets the peak, and gives cached memory back to the driver."""
        ...

    def synchronize(self) -> None:
        """Waits for everything; for boot and teardown only."""
        ...


class _Passed:
    """An event of work that is done when it is enqueued."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


class _Again:
    """A graph that runs the same Python again."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


class HostDevice:
    """The host as a device: work runs when it is enqueued, and a graph runs it again."""

    runs_behind = False

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def event(self) -> Event:
        """An event that has always passed."""
        return _Passed()

    def stream(self) -> int:
        """The only one."""
        return 0

    def pinned(self, size: int) -> torch.Tensor:
        """Plain memory."""
        return torch.zeros(size, dtype=torch.uint8)

    def record(self, work: Callable[[], None]) -> Graph:
        """Runs ``work`` as often as a recording would and keeps it."""
        for _ in range(WARM_UPS):
            work()
        return _Again(work)

    def retire_pool(self) -> None:
        """Recordings hold no memory."""

    def free_and_total(self) -> tuple[int, int]:
        """What the machine and the control group leave, for both."""
        available = available_bytes()
        return available, available

    def allocated(self) -> tuple[int, int]:
        """0 and 0: the reading above counts everything."""
        return 0, 0

    def reset_peak(self) -> None:
        """Nothing is counted."""

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back."""


class CudaDevice:
    """A CUDA device. All graphs share one memory pool and are recorded on one side stream."""

    runs_behind = True

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self.device = torch.device(device)
        self._recorder = GraphRecorder(self.device)

    def stream(self) -> int:
        """The handle of the current stream."""
        return torch.cuda.current_stream(self.device).cuda_stream

    def event(self) -> Event:
        """An event that does not spin and keeps no time."""
        return torch.cuda.Event()  # type: ignore[return-value]  # record() takes a stream too

    def pinned(self, size: int) -> torch.Tensor:
        """Page-locked memory, locked once."""
        return torch.zeros(size, dtype=torch.uint8, pin_memory=True)

    def record(self, work: Callable[[], None]) -> Graph:
        """Captures a graph."""
        return self._recorder.record(work)

    def retire_pool(self) -> None:
        """As the recorder says."""
        self._recorder.retire_pool()

    def free_and_total(self) -> tuple[int, int]:
        """As the driver counts, every process included."""
        return torch.cuda.mem_get_info(self.device)

    def allocated(self) -> tuple[int, int]:
        """As torch's allocator counts."""
        return (
            torch.cuda.memory_allocated(self.device),
            torch.cuda.max_memory_allocated(self.device),
        )

    def reset_peak(self) -> None:
        """Empties torch's cache and its peak counters."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def synchronize(self) -> None:
        """Waits for all streams."""
        torch.cuda.synchronize(self.device)


def open_device(name: torch.device | str) -> Device:
    """The device of this name; ValueError for one that is not served."""
    device = torch.device(name)
    if device.type == "cpu":
        return HostDevice()
    if device.type == "cuda":
        return CudaDevice(device)
    raise ValueError(f"device is {device.type!r}; supported: cpu, cuda")
