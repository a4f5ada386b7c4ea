"""No end before the smallest length that the request asks for."""

from __future__ import annotations

from collections.abc import Sequence

from ..window import Window, words_of
from .protocol import RowFacts


class MinTokens:
    """Bars the end ids while fewer than ``minimum`` tokens have been drawn."""

    name = "min_tokens"

    def __init__(self, facts: RowFacts) -> None:
        self._drawn = facts.drawn
        self._minimum = facts.sampling.min_tokens
        self._allowed = ~words_of(facts.end_ids, facts.vocabulary)

    @property
    def active(self) -> bool:
        """See Processor."""
        return len(self._drawn) < self._minimum

    def fill(self, window: Window, drafts: Sequence[int]) -> None:
        """See Processor."""
        short = self._minimum - len(self._drawn)
        for place in range(min(short, len(drafts) + 1)):
            window.keep(place, self._allowed)

    def advance(self, token: int) -> None:
        """See Processor; the row's own list is read."""

    def rewind(self, outputs: int) -> None:
        """See Processor; the row's own list is read."""


def min_tokens(facts: RowFacts) -> MinTokens | None:
    """The request's smallest length, where an end could come before it."""
    return MinTokens(facts) if facts.sampling.min_tokens > 0 and len(facts.end_ids) else None
