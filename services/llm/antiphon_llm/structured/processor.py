"""Holds one output to its grammar: the mask of each position, and each drawn token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from antiphon_llm.sampler.processors import Thinking, TokenRefused
from antiphon_llm.sampler.window import Window, mask_words

from .backend import Matcher

DESYNC = "GRAMMAR_DESYNC"


class GrammarProcessor:
    """The grammar's rule over one request's tokens; see ``sampler.processors.Processor``.

    The constraint binds the answer alone. Behind a reasoning block it is armed at the position
    after the closing marker, inside a window as well; before the first token of a model that
    may open a block, the opening marker is allowed besides.

    Args:
        matcher: of this output.
        end_ids: ids that end the output; barred inside a reasoning block, behind which the
            answer is still to come.
        thinking: what follows the request's reasoning, where the model has markers for it.
        stopping: whether an operator has ordered the end, which then comes anywhere.
        on_desync: called when a drawn token is not in the grammar.
    """

    name = "grammar"

    def __init__(
        self,
        matcher: Matcher,
        *,
        end_ids: Sequence[int],
        thinking: Thinking | None,
        stopping: Callable[[], bool],
        on_desync: Callable[[], None],
    ) -> None:
        self._matcher = matcher
        self._end_ids = end_ids
        self._thinking = thinking
        self._stopping = stopping
        self._on_desync = on_desync
        self._taken: list[bool] = []
        """For each drawn token, whether the matcher has accepted it."""

    @property
    def active(self) -> bool:
        """See Processor. A reasoning block may end with a token that is in flight."""
        return True

    def fill(self, window: Window, drafts: Sequence[int]) -> None:
        """See Processor. Positions behind a draft that the grammar refuses, or behind an end
        id, are left free: no draw reaches them."""
        thinking = self._thinking
        free = [True] * (1 + len(drafts))
        armed = free if thinking is None else thinking.answer_places(drafts)
        belongs = free if thinking is None else thinking.answer_drafts(drafts)
        words = np.empty(mask_words(window.vocabulary), dtype=np.uint32)
        accepted = 0
        for place in range(1 + len(drafts)):
            if self._matcher.ended:
                break
            if armed[place]:
                self._matcher.fill(words)
                if not place:
                    self._allow_opening(words)
                window.keep(place, words)
            elif thinking is not None:
                self._matcher.fill(words)
                window.bar(
                    place, [token for token in thinking.openers if not _allowed(words, token)]
                )
                window.bar(place, self._end_ids)
            if place < len(drafts) and belongs[place]:
                if not self._matcher.accept(drafts[place]):
                    break
                accepted += 1
        if accepted:
            self._matcher.rollback(accepted)

    def advance(self, token: int) -> None:
        """See Processor."""
        taken = (
            (self._thinking is None or self._thinking.answers(token))
            and not self._matcher.ended
            and not self._stopping()
        )
        if taken and not self._matcher.accept(token):
            self._on_desync()
            raise TokenRefused(f"the drawn token {token} is not in the grammar", DESYNC)
        self._taken.append(taken)

    def rewind(self, outputs: int) -> None:
        """See Processor."""
        forgotten = sum(self._taken[outputs:])
        del self._taken[outputs:]
        if forgotten:
            self._matcher.rollback(forgotten)

    def _allow_opening(self, words: np.ndarray) -> None:
        opening = -1 if self._thinking is None else self._thinking.opening_id()
        if opening >= 0:
            words[opening >> 5] |= np.uint32(1 << (opening & 31))


def _allowed(words: np.ndarray, token: int) -> bool:
    return bool(words[token >> 5] >> np.uint32(token & 31) & np.uint32(1))
