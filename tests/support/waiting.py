"""Waiting for a condition, for tests of things that happen elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

POLL_S = 0.005


async def until(condition: Callable[[], object], seconds: float = 15.0) -> float:
    """Waits until the condition holds; returns how many seconds that took.

    The default is for things that happen at once: it only has to outlast a busy machine.

    Raises:
        TimeoutError: it did not hold in time.
    """
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > seconds:
            raise TimeoutError(f"not within {seconds:g} s")
        await asyncio.sleep(POLL_S)
    return time.monotonic() - started
