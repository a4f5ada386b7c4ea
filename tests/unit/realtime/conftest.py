"""Fixtures of the realtime unit tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from realtime_bench import Bench


@pytest.fixture
def bench() -> Bench:
    """An opened session with server VAD and default settings."""
    return Bench()
