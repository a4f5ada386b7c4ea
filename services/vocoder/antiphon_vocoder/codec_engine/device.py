"""Where steps run: on the host at once, or on a CUDA device behind it and recorded as graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Protocol

import torch
from antiphon_nn.device import with_index
from antiphon_nn.graph_recorder import GraphRecorder


class StepDevice(Protocol):
    """A device with one queue of work."""

    device: torch.device
    runs_behind: bool
    """Whether enqueued work runs while the host goes on."""

    def host_buffer(self, size: int) -> torch.Tensor:
        """uint8 (size) of host memory that is copied to and from the device without a stop."""
        ...

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Warms ``work`` up; returns what enqueues it again. Raises what it raises."""
        ...

    def marker(self) -> Callable[[], None]:
        """Returns what waits for the work enqueued so far."""
        ...

    def used_bytes(self) -> int:
        """Memory of this process on the device, weights and recordings included."""
        ...

    def free_bytes(self) -> int:
        """Memory that the device can still give."""
        ...

    def release(self) -> None:
        """Gives back what dropped tensors and recordings held."""
        ...


class HostStepDevice:
    """The host: work is done when it is enqueued, and a recording runs it again."""

    runs_behind = False

    def __init__(self, threads: int) -> None:
        self.device = torch.device("cpu")
        if threads:
            torch.set_num_threads(threads)

    def host_buffer(self, size: int) -> torch.Tensor:
        """Plain memory."""
        return torch.zeros(size, dtype=torch.uint8)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Runs it once: what is allocated at a first run is allocated then."""
        work()
        return work

    def marker(self) -> Callable[[], None]:
        """Nothing runs behind the caller's back."""
        return _nothing

    def used_bytes(self) -> int:
        """Resident memory."""
        from antiphon_core.memory import resident_bytes

        return resident_bytes()

    def free_bytes(self) -> int:
        """What the machine and the control group leave."""
        from antiphon_core.memory import available_bytes

        return available_bytes()

    def release(self) -> None:
        """Collects what is unreachable."""
        gc.collect()


class CudaStepDevice:
    """One CUDA device. All recordings share a memory pool.

    Every method runs on the thread that made the object: the current device is per thread.
    """

    runs_behind = True

    def __init__(self, name: str) -> None:
        self.device = with_index(torch.device(name))
        torch.cuda.set_device(self.device)
        free, _ = torch.cuda.mem_get_info(self.device)
        self._free_before = free
        self._recorder = GraphRecorder(self.device)

    def host_buffer(self, size: int) -> torch.Tensor:
        """Page-locked memory."""
        return torch.zeros(size, dtype=torch.uint8, pin_memory=True)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Captures a graph."""
        return self._recorder.record(work).replay

    def marker(self) -> Callable[[], None]:
        """An event that does not spin."""
        event = torch.cuda.Event(blocking=True)
        event.record()
        return event.synchronize

    def used_bytes(self) -> int:
        """What the driver has less since this object was made, other processes included."""
        free, _ = torch.cuda.mem_get_info(self.device)
        return max(0, self._free_before - free)

    def free_bytes(self) -> int:
        """As the driver counts."""
        return torch.cuda.mem_get_info(self.device)[0]

    def release(self) -> None:
        """Empties torch's cache; later recordings use a new pool."""
        self._recorder.retire_pool()
        gc.collect()
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()


def open_device(name: str, threads: int) -> StepDevice:
    """The device of this name.

    Raises:
        ValueError: a kind that is not served, or CUDA where there is none.
    """
    kind = torch.device(name).type
    if kind == "cpu":
        return HostStepDevice(threads)
    if kind != "cuda":
        raise ValueError(f"device {name!r} is not served; allowed: cpu, cuda, cuda:N")
    if not torch.cuda.is_available():
        raise ValueError(f"device {name!r} was asked for and torch finds no CUDA device here")
    return CudaStepDevice(name)


def is_fatal(error: BaseException) -> bool:
    """Whether the device is in an unknown state after this error, so that the process must end."""
    kind = getattr(torch, "AcceleratorError", None)
    return kind is not None and isinstance(error, kind)


def _nothing() -> None:
    """Waits for nothing."""
