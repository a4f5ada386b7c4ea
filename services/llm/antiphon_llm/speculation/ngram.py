"""Drafts copied from the request's own text: what followed the same few tokens last time.

Prompt lookup decoding (Saxena, 2023), with an index in place of a search. What is proposed is a
point mass, so match acceptance keeps it as often as the model allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .drafter import Proposal

if TYPE_CHECKING:
    import torch

    from antiphon_llm.engine.plan import StepPlan
    from antiphon_llm.engine.request import Request
    from antiphon_llm.engine.runner import StepResult

LONGEST, SHORTEST = 4, 2
"""Tokens of a match."""
MAX_DEPTH = 15

_MULTIPLIERS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F)
"""Odd and large, one for each distance from the end; ids stay below 2**29, so sums fit int64."""
_WORD = (1 << 32) - 1
_PLACES = 4
"""Places for each token, at least; they double when that no longer holds."""
_FIRST_BITS = 11
_AT_ONCE = 8
"""More new tokens than this are indexed as arrays."""


class NgramIndex:
    """Where each n-gram of a growing sequence last ended, for n from 2 to 4.

    A table per n holds the position behind the n-gram at the n-gram's hash. A newer n-gram of
    the same hash takes its place, so what is found is compared with the tokens, and a few are
    not found: tables have at least four places for each token, which holds 128k tokens in 6 MiB
    and indexes them in a few milliseconds, where dictionaries of n-grams need ten times both.
    """

    def __init__(self) -> None:
        self._bits = _FIRST_BITS
        self._tables = self._empty()
        self._indexed = 0
        self._last: tuple[int, list[int]] = (0, [])
        """Length of the text when it was last looked up, and its end's keys."""

    def follow(self, tokens: Sequence[int], depth: int) -> list[int]:
        """Up to ``depth`` tokens that followed the latest earlier occurrence of the longest
        match of the end of ``tokens``; empty without one.

        ``tokens`` continues what earlier calls saw. A copy that reaches the end of the text goes
        on with its own beginning, as in a text that repeats itself.
        """
        self._extend(tokens)
        length = len(tokens)
        self._last = length, self._keys(tokens, length)
        for n in range(min(LONGEST, length - 1), SHORTEST - 1, -1):
            place = int(self._tables[n - SHORTEST][self._last[1][n - SHORTEST]])
            if place and tokens[place - n : place] == tokens[length - n :]:
                copied = list(tokens[place : place + depth])
                while len(copied) < depth:
                    copied.append(copied[len(copied) - (length - place)])
                return copied
        return []

    def _extend(self, tokens: Sequence[int]) -> None:
        """Indexes what ends before the last token: the end itself must not be found."""
        end = len(tokens)
        if _PLACES * end > 1 << self._bits:
            while _PLACES * end > 1 << self._bits:
                self._bits += 1
            self._tables, self._indexed, self._last = self._empty(), 0, (0, [])
        if end - self._indexed > _AT_ONCE:
            self._extend_at_once(tokens)
            return
        for place in range(self._indexed + 1, end):
            keys = self._last[1] if place == self._last[0] else self._keys(tokens, place)
            for table, key in zip(self._tables, keys, strict=False):
                table[key] = place
        self._indexed = max(self._indexed, end - 1)

    def _extend_at_once(self, tokens: Sequence[int]) -> None:
        first = max(0, self._indexed + 1 - LONGEST)
        new = np.array(tokens[first:-1], dtype=np.int64)
        sums = np.zeros(len(new), dtype=np.int64)
        for n in range(1, LONGEST + 1):
            if n > len(new):
                break
            sums[n - 1 :] += new[: len(new) - n + 1] * _MULTIPLIERS[n - 1]
            if n >= SHORTEST:
                keys = (sums[n - 1 :] & _WORD) >> (32 - self._bits)
                # Of equal keys the last one stays: the latest occurrence.
                self._tables[n - SHORTEST][keys] = np.arange(first + n, first + len(new) + 1)
        self._indexed = len(tokens) - 1

    def _keys(self, tokens: Sequence[int], end: int) -> list[int]:
        """Places in the tables of the n-grams that end before ``end``, the shortest first."""
        shift = 32 - self._bits
        total, keys = 0, []
        for n in range(1, min(LONGEST, end) + 1):
            total += tokens[end - n] * _MULTIPLIERS[n - 1]
            if n >= SHORTEST:
                keys.append((total & _WORD) >> shift)
        return keys

    def _empty(self) -> list[np.ndarray]:
        return [np.zeros(1 << self._bits, dtype=np.int32) for _ in range(SHORTEST, LONGEST + 1)]


class NgramDrafter:
    """A Drafter that runs on the host alone; each request has its index from its first draft."""

    name = "ngram"
    max_depth = MAX_DEPTH
    wants_hidden = False
    tap_layers: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._indices: dict[Request, NgramIndex] = {}

    def expects(self, requests: Sequence[Request]) -> list[bool]:
        """See Drafter. A text that repeated itself so far is taken to go on."""
        return [bool(self._follow(request, 1)) for request in requests]

    def draft(self, requests: Sequence[Request], depth: int) -> Proposal:
        """See Drafter."""
        return Proposal([self._follow(request, depth) for request in requests])

    def observe(
        self,
        plan: StepPlan,
        hidden: torch.Tensor | None,
        taps: Mapping[int, torch.Tensor],
        result: StepResult,
    ) -> None:
        """See Drafter. Committed tokens are all that it needs."""

    def release(self, request: Request) -> None:
        """See Drafter."""
        self._indices.pop(request, None)

    def warmup(self) -> None:
        """See Drafter. There is nothing to warm."""

    def predict_bytes(self, *, max_rows: int, entries: int) -> int:
        """See Drafter."""
        return 0

    def _follow(self, request: Request, depth: int) -> list[int]:
        index = self._indices.get(request)
        if index is None:
            index = self._indices[request] = NgramIndex()
        return index.follow(request.tokens, depth)
