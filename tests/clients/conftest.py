"""Paths of what the tests of realtime clients share with other tests."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "unit" / "recognition"), str(TESTS / "unit" / "realtime")]
