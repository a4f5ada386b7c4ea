"""How much memory this process has and may take."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_MEMINFO = Path("/proc/meminfo")
_STATM = Path("/proc/self/statm")
_CGROUP_V2 = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"))
_CGROUP_V1 = (
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_bytes() -> int:
    """The smaller of the machine's MemAvailable and the room in the control group.

    0 where nothing can be read: nothing is granted on a guess.
    """
    readings = [reading for reading in (_machine(), _control_group()) if reading is not None]
    return max(0, min(readings)) if readings else 0


def resident_bytes() -> int:
    """This process's resident set; 0 where it cannot be read."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def discard_pages(storage: torch.UntypedStorage) -> int:
    """Gives the physical pages of host memory back; its address stays, its contents are lost.

    What is read before it is written is zero, but for the ends that share a page with others.
    Returns the bytes given back. Raises OSError where the kernel refuses.
    """
    page = mmap.PAGESIZE
    start = -(-storage.data_ptr() // page) * page
    size = (storage.data_ptr() + storage.nbytes()) // page * page - start
    if size <= 0:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_DONTNEED) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return size


def _machine() -> int | None:
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def _control_group() -> int | None:
    for limit_path, usage_path in (_CGROUP_V2, _CGROUP_V1):
        try:
            limit = limit_path.read_text().strip()
            if limit != "max":
                return int(limit) - int(usage_path.read_text())
        except (OSError, ValueError):
            continue
    return None
