"""Fixtures of the gateway's tests over real sockets."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gateway_bench import GatewayBench


@pytest.fixture
async def bench() -> AsyncIterator[GatewayBench]:
    """A ready gateway before ready backends."""
    made = GatewayBench()
    await made.start()
    yield made
    await made.stop()
