"""No sequence of n tokens twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ..window import Window
from .protocol import RowFacts


class NgramBlock:
    """Bars every token that would complete a sequence of ``size`` tokens for a second time.

    Prompt and output are searched, or the latest ``span`` tokens of them. An index from each
    sequence of ``size - 1`` tokens to the places of what followed makes a token cost O(1) and
    a window the occurrences found; a window's drafts are indexed while it is filled.
    """

    name = "ngram_block"
    active = True

    def __init__(self, facts: RowFacts) -> None:
        self._size = facts.sampling.no_repeat_ngram_size
        self._span = facts.sampling.no_repeat_ngram_window
        self._prompt = len(facts.prompt_ids)
        self._tokens: list[int] = []
        self._followers: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for token in facts.prompt_ids:
            self._push(token)

    def fill(self, window: Window, drafts: Sequence[int]) -> None:
        """See Processor."""
        for place in range(len(drafts) + 1):
            barred = self._barred()
            if barred:
                window.bar(place, barred)
            if place < len(drafts):
                self._push(drafts[place])
        for _ in drafts:
            self._pop()

    def advance(self, token: int) -> None:
        """See Processor."""
        self._push(token)

    def rewind(self, outputs: int) -> None:
        """See Processor."""
        while len(self._tokens) > self._prompt + outputs:
            self._pop()

    def _barred(self) -> set[int]:
        if len(self._tokens) < self._size - 1:
            return set()
        oldest = len(self._tokens) - self._span if self._span else 0
        barred: set[int] = set()
        for place in reversed(self._followers.get(self._tail(), ())):
            if place - self._size + 1 < oldest:
                break
            barred.add(self._tokens[place])
        return barred

    def _tail(self) -> tuple[int, ...]:
        return tuple(self._tokens[len(self._tokens) - self._size + 1 :])

    def _push(self, token: int) -> None:
        if len(self._tokens) >= self._size - 1:
            self._followers[self._tail()].append(len(self._tokens))
        self._tokens.append(token)

    def _pop(self) -> None:
        self._tokens.pop()
        if len(self._tokens) >= self._size - 1:
            gram = self._tail()
            self._followers[gram].pop()
            if not self._followers[gram]:
                del self._followers[gram]


def ngram_block(facts: RowFacts) -> NgramBlock | None:
    """The request's bar on repeated sequences."""
    return NgramBlock(facts) if facts.sampling.no_repeat_ngram_size > 0 else None
