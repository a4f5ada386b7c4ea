"""Ids that a request allows or bans as such, and those of modalities it did not ask for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..window import Window, words_of
from .protocol import RowFacts


class FixedIds:
    """The same ids at every position.

    Args:
        name: place in the registry.
        allowed: words of the ids that may be drawn, uint32 (ceil(V/32)).
    """

    active = True

    def __init__(self, name: str, allowed: np.ndarray) -> None:
        self.name = name
        self._allowed = allowed

    def fill(self, window: Window, drafts: Sequence[int]) -> None:
        """See Processor."""
        for place in range(len(drafts) + 1):
            window.keep(place, self._allowed)

    def advance(self, token: int) -> None:
        """See Processor; nothing follows the tokens."""

    def rewind(self, outputs: int) -> None:
        """See Processor; nothing follows the tokens."""


def token_ids(facts: RowFacts) -> FixedIds | None:
    """The request's allowed and banned ids."""
    allowed, banned = facts.sampling.allowed_token_ids, facts.sampling.banned_token_ids
    if not allowed and not banned:
        return None
    words = words_of(allowed or range(facts.vocabulary), facts.vocabulary)
    return FixedIds("token_ids", words & ~words_of(banned, facts.vocabulary))


def modality(facts: RowFacts) -> FixedIds | None:
    """Keeps a text-only reply free of speech ids."""
    if not facts.unasked_ids:
        return None
    return FixedIds("modality", ~words_of(facts.unasked_ids, facts.vocabulary))
