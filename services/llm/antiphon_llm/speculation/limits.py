"""Sizes that a drafter with a model or head of its own is built for."""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "draft."
"""Of the names of a drafter's fields in the target's KV pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLimits:
    """Rows, tokens and the unit of the target's KV pool."""

    max_rows: int
    depth: int
    chunk_tokens: int
    """Most tokens of one forward of a draft model that catches up."""
    entry_tokens: int
    residual: bool = False
    """Proposals carry the distributions that residual acceptance needs."""

    def distributions(self, vocabulary: int) -> tuple[int, int, int] | None:
        """Sizes of the drafts' distributions, where acceptance needs them."""
        return (self.max_rows, self.depth, vocabulary) if self.residual else None

    def distribution_bytes(self, vocabulary: int) -> int:
        """Host memory that they take."""
        return self.max_rows * self.depth * vocabulary * 4 if self.residual else 0

    @property
    def spare_entries(self) -> int:
        """Spare blocks of one row: its guesses begin at one's start."""
        return -(-self.depth // self.entry_tokens)
