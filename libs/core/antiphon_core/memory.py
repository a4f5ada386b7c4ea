"""Memory of this process and of its machine."""

from __future__ import annotations

import os
from pathlib import Path

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
