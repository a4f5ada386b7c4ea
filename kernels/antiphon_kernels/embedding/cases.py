"""Shapes for tests of the embedding: (rows, vocabulary, hidden, drawn rows)."""

from __future__ import annotations

CASES = ((1, 7, 64, 1), (5, 100, 1030, 3), (9, 31, 2048, 4))
