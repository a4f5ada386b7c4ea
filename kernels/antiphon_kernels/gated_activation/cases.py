"""Shapes for tests of the gated activations: (rows, width)."""

from __future__ import annotations

CASES = ((1, 1536), (3, 2048), (7, 5), (129, 33), (2, 1))
