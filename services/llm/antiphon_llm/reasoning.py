"""Where a reasoning block stands, told from token ids alone; for the draw and for the count.

A pure machine: a state and a token make the next state, so that a window's drafts can be
followed without touching the request, and a rewind is a replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from antiphon_llm.messages import Reasoning


class ReasoningState(NamedTuple):
    """After some output tokens."""

    phase: str
    """waiting (no block yet), open or closed."""
    outputs: int = 0
    """Output tokens until here, or until the block was closed."""
    began: int = 0
    """Of them those before the block: all while it waits."""
    inside: int = 0
    """Tokens behind the opening marker: what the budget counts."""
    matched: int = 0
    """Length of the marker's beginning that the output ends with."""
    cursor: int = 0
    """Ids of the forced ending that have been drawn."""


class ReasoningMachine:
    """Follows one block: opened by the prompt or by its marker, closed by its marker.

    Args:
        marks: the model's markers and the request's budget.
    """

    def __init__(self, marks: Reasoning) -> None:
        self._start = tuple(marks.start_ids)
        self._end = tuple(marks.end_ids)
        self.openers = frozenset(marks.opener_ids)
        self._ending = (*marks.transition_ids, *marks.end_ids)
        self._budget = marks.budget
        self._opening = 0 if marks.open else len(marks.start_ids)
        self.initial = ReasoningState("open" if marks.open else "waiting")

    @property
    def bounded(self) -> bool:
        """Whether a budget may force the block's end."""
        return self._budget >= 0

    def bound(self, tokens: int) -> None:
        """Lowers the budget to so many tokens inside the block."""
        if self._budget < 0 or tokens < self._budget:
            self._budget = tokens

    def opens_with(self, state: ReasoningState) -> int:
        """The id that would open a block at this state, -1 where none alone does."""
        return self._start[0] if state.phase == "waiting" and len(self._start) == 1 else -1

    def answers(self, state: ReasoningState, token: int) -> bool:
        """Whether this token, drawn at this state, is no part of a block."""
        return state.phase != "open" or token in self.openers

    def forced(self, state: ReasoningState) -> int:
        """The id that must be drawn next because the budget is spent, else -1."""
        spent = 0 <= self._budget <= state.inside
        if state.phase != "open" or not spent or not self._end:
            return -1
        return self._ending[self._place(state)]

    def step(self, state: ReasoningState, token: int) -> ReasoningState:
        """The state after one more token."""
        if state.phase == "closed":
            return state
        if state.phase == "waiting":
            matched = _matched(self._start, state.matched, token)
            outputs = state.outputs + 1
            if not self._start or matched < len(self._start):
                return ReasoningState("waiting", outputs, outputs, matched=matched)
            return ReasoningState("open", outputs, began=outputs - matched)
        if token in self.openers:
            return state._replace(phase="closed")
        matched = _matched(self._end, state.matched, token)
        forced = self.forced(state)
        return ReasoningState(
            "closed" if 0 < matched == len(self._end) else "open",
            state.outputs + 1,
            state.began,
            state.inside + 1,
            matched,
            self._place(state) + 1 if forced == token else 0,
        )

    def replay(self, tokens: Iterable[int]) -> ReasoningState:
        """The state after all of these output tokens."""
        state = self.initial
        for token in tokens:
            state = self.step(state, token)
        return state

    def tokens(self, state: ReasoningState, outputs: int) -> int:
        """Tokens of the block among the first ``outputs`` of those that led to this state, its
        markers included; -1 where no block had been opened by then."""
        if state.phase == "waiting" or outputs < state.began + self._opening:
            return -1
        return min(outputs, state.outputs) - state.began

    def along(self, state: ReasoningState, drafts: Sequence[int]) -> list[ReasoningState]:
        """The states before each position of a window: (1 + number of drafts)."""
        states = [state]
        for token in drafts:
            states.append(self.step(states[-1], token))
        return states

    def _place(self, state: ReasoningState) -> int:
        """Index of the next forced id; a marker that has begun by itself is finished."""
        if state.cursor or not state.matched:
            return state.cursor
        return len(self._ending) - len(self._end) + state.matched


def _matched(marker: Sequence[int], matched: int, token: int) -> int:
    """Length of the longest beginning of the marker that ends with this token."""
    ids = (*marker[:matched], token)
    for size in range(min(len(ids), len(marker)), 0, -1):
        if ids[-size:] == marker[:size]:
            return size
    return 0
