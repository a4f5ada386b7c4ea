"""Makes the worker modules of these tests importable here and in worker processes."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

WORKER_MODULES = Path(__file__).parent / "worker_modules"

sys.path.insert(0, str(WORKER_MODULES))


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A folder whose path leaves room for a Unix socket's name, which pytest's own may not."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        yield Path(folder)


@pytest.fixture
def worker_modules() -> Path:
    return WORKER_MODULES
