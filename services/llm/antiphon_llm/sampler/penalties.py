"""Repetition, frequency and presence penalties over a request's own tokens."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


class TokenHistory:
    """Distinct tokens of a prompt and its output, with the output's counts.

    Sparse, because a row touches few of the vocabulary's tokens: applying costs the number
    of distinct tokens, and each new token is folded in once.
    """

    def __init__(self, prompt_ids: Iterable[int]) -> None:
        distinct = sorted(set(prompt_ids))
        self._place = {token: place for place, token in enumerate(distinct)}
        self._ids = np.array(distinct, dtype=np.int64)
        self._counts = np.zeros(len(distinct), dtype=np.float32)
        self._prompt_tokens = len(distinct)

    def __len__(self) -> int:
        return len(self._place)

    def append(self, token: int) -> None:
        """Counts one output token."""
        place = self._place.setdefault(token, len(self._place))
        if place >= len(self._ids):
            room = max(64, 2 * len(self._ids)) - len(self._ids)
            self._ids = np.concatenate((self._ids, np.zeros(room, dtype=np.int64)))
            self._counts = np.concatenate((self._counts, np.zeros(room, dtype=np.float32)))
        self._ids[place] = token
        self._counts[place] += 1

    def drop_last(self, token: int) -> None:
        """Undoes the last ``append``, which was of this token."""
        place = self._place[token]
        self._counts[place] -= 1
        if place >= self._prompt_tokens and not self._counts[place]:
            del self._place[token]

    def apply(
        self, logits: np.ndarray, *, repetition: float, frequency: float, presence: float
    ) -> None:
        """Penalises fp32 logits (V) in place.

        Repetition sees prompt and output; frequency and presence only the output, so that a
        long document's own words are not pushed out of its summary.
        """
        ids, counts = self._ids[: len(self)], self._counts[: len(self)]
        values = logits[ids]
        factor = np.float32(repetition)
        values = np.where(values > 0, values / factor, values * factor)
        values -= np.float32(frequency) * counts
        values -= np.float32(presence) * (counts > 0)
        logits[ids] = values
