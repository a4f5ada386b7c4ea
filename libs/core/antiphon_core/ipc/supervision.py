"""Parent-death signal and the restart budget."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Asks the kernel to kill this process when its parent ends (Linux; elsewhere nothing).

    A parent that died before the call is noticed by its changed id, and ends this process.

    Raises:
        OSError: the kernel refused.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    exit_if_orphaned(parent_pid)


def exit_if_orphaned(parent_pid: int) -> None:
    """Ends this process at once when its parent is no longer ``parent_pid``."""
    if os.getppid() != parent_pid:
        os._exit(1)


class RestartBudget:
    """Allows ``limit`` restarts within any ``window`` seconds."""

    def __init__(
        self, limit: int, window: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = limit
        self._window = window
        self._clock = clock
        self._spent: deque[float] = deque()

    def take(self) -> bool:
        """Spends one restart; False when none is left."""
        now = self._clock()
        while self._spent and self._spent[0] <= now - self._window:
            self._spent.popleft()
        if len(self._spent) >= self._limit:
            return False
        self._spent.append(now)
        return True
