"""Embedding vectors."""

from __future__ import annotations


def shortened(vector: list[float], dimensions: int) -> list[float]:
    """The leading dimensions, brought back to unit length."""
    if not dimensions or dimensions >= len(vector):
        return vector
    kept = vector[:dimensions]
    length = sum(value * value for value in kept) ** 0.5
    return [value / length for value in kept] if length else kept
