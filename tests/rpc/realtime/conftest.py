"""Fixtures of the realtime tests over real sockets and gRPC."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "realtime"))

from realtime_gateway import RealtimeGateway


@pytest.fixture
async def gateway() -> AsyncIterator[RealtimeGateway]:
    """A gateway in front of scripted backends, ready."""
    made = RealtimeGateway()
    await made.start()
    yield made
    await made.stop()
