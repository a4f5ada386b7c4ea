"""Memory of this process and of its machine."""

from __future__ import annotations

import resource
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CONTROL_GROUP = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"))


def resident_bytes() -> int:
    """Resident set size; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * resource.getpagesize()


def available_bytes() -> int:
    """The smaller of MemAvailable and the room in the control group; 0 where nothing tells."""
    readings = [reading for reading in (_machine(), _control_group()) if reading is not None]
    return max(0, min(readings)) if readings else 0


def _machine() -> int | None:
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def _control_group() -> int | None:
    limit, current = _CONTROL_GROUP
    try:
        most = limit.read_text().strip()
        return None if most == "max" else int(most) - int(current.read_text())
    except (OSError, ValueError):
        return None
