"""Fixtures of the rpc tests."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from rpc_stub import Bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Started and ready."""
    made = Bench()
    await made.start()
    made.lifecycle.ready()
    yield made
    await made.channel.close()
    await made.server.stop(0.0)


@pytest.fixture
async def booting_bench() -> AsyncIterator[Bench]:
    """Started, not ready."""
    made = Bench()
    await made.start()
    yield made
    await made.channel.close()
    await made.server.stop(0.0)
