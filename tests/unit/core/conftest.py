"""Makes the worker modules of these tests importable here and in worker processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

WORKER_MODULES = Path(__file__).parent / "worker_modules"

sys.path.insert(0, str(WORKER_MODULES))


@pytest.fixture
def worker_modules() -> Path:
    return WORKER_MODULES
