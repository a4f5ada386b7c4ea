"""What one KV entry holds, declared once: the same list is priced and carved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import torch

ALIGNMENT = 256
"""Bytes to which every field of an entry is rounded."""


def align(size: int) -> int:
    """``size`` rounded up to ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One tensor that every entry has a unit of, for example the keys of one layer.

    A unit has shape ``(rows_per_entry, *row_shape)``; ``fill`` is the value that a fresh
    pool holds. ``spare_units`` lie behind the entries' units: room for what no entry holds, such
    as a drafter's guesses; only the field that has them pays for them.
    """

    name: str
    rows_per_entry: int
    row_shape: tuple[int, ...]
    dtype: torch.dtype
    fill: float = 0.0
    spare_units: int = 0

    @property
    def unit_bytes(self) -> int:
        """Bytes of one unit without padding."""
        return self.rows_per_entry * prod(self.row_shape) * self.dtype.itemsize


def entry_bytes(fields: Iterable[FieldSpec]) -> int:
    """Price of one entry: the sum of its fields, each rounded up to ALIGNMENT."""
    return sum(align(field.unit_bytes) for field in fields)


def spare_bytes(fields: Iterable[FieldSpec]) -> int:
    """Price of all spare units, whatever the number of entries."""
    return sum(field.spare_units * align(field.unit_bytes) for field in fields)
