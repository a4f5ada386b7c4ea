"""From a request's seed to the key of its random numbers, for the draw and for the report."""

from __future__ import annotations


def request_key(seed: int) -> int:
    """The 64-bit key of a request: SplitMix64 (Steele, Lea and Flood 2014) of its seed."""
    mask = (1 << 64) - 1
    mixed = (seed + 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return mixed ^ (mixed >> 31)
