"""The reasoning block: counted, closed at its budget, and the gate of what is bound behind it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from antiphon_llm.reasoning import ReasoningMachine

from ..window import Window
from .protocol import RowFacts


class Thinking:
    """Follows the block by token ids and forces its end one id per position.

    A constraint on the answer asks this which positions belong to the answer.
    """

    name = "thinking"

    def __init__(self, facts: RowFacts) -> None:
        assert facts.sampling.reasoning is not None
        self._machine = ReasoningMachine(facts.sampling.reasoning)
        self._drawn = facts.drawn
        self._state = self._machine.initial
        self._closes = bool(facts.sampling.reasoning.end_ids)

    @property
    def active(self) -> bool:
        """See Processor."""
        return self._machine.bounded and self._state.phase != "closed"

    def tokens(self, outputs: int) -> int:
        """Reasoning tokens among the first ``outputs``, markers included; -1 without a block.

        More tokens may have been drawn than were kept.
        """
        return self._machine.tokens(self._state, outputs)

    def fill(self, window: Window, drafts: Sequence[int]) -> None:
        """See Processor."""
        for place, state in enumerate(self._machine.along(self._state, drafts)):
            token = self._machine.forced(state)
            if token >= 0:
                window.force(place, token)

    def advance(self, token: int) -> None:
        """See Processor."""
        self._state = self._machine.step(self._state, token)

    def rewind(self, outputs: int) -> None:
        """See Processor."""
        self._state = self._machine.replay(self._drawn)

    def answer_places(self, drafts: Sequence[int]) -> list[bool]:
        """For each position of a window (1 + number of drafts): whether its token belongs to the
        answer. An answer may begin before any block was opened."""
        return [state.phase != "open" for state in self._machine.along(self._state, drafts)]

    def answer_drafts(self, drafts: Sequence[int]) -> list[bool]:
        """For each draft, whether it belongs to the answer."""
        states = self._machine.along(self._state, drafts)
        return [
            self._machine.answers(state, token) and (place > 0 or token != self.opening_id())
            for place, (state, token) in enumerate(zip(states, drafts, strict=False))
        ]

    @property
    def openers(self) -> Collection[int]:
        """Ids that close an open block and begin the answer themselves."""
        return self._machine.openers

    def opening_id(self) -> int:
        """The id that may open a block as the very first token, beside what the answer's own
        constraint allows there; -1 where no single id does, or it is too late."""
        return -1 if self._drawn else self._machine.opens_with(self._state)

    def answers(self, token: int) -> bool:
        """Whether this token, drawn next, belongs to the answer; asked before ``advance``."""
        return self._machine.answers(self._state, token) and token != self.opening_id()

    def end_now(self) -> str:
        """Closes the open block from the next position on, as if its budget were spent.

        Returns why nothing can happen, else an empty text.
        """
        state = self._state
        if state.phase == "waiting":
            return "the model has not opened a reasoning block"
        if state.phase == "closed":
            return "the reasoning block is closed already"
        if not self._closes:
            return "the model has no marker that closes its reasoning"
        self._machine.bound(state.inside)
        return ""


def thinking(facts: RowFacts) -> Thinking | None:
    """Follows reasoning where the model has markers for it."""
    return Thinking(facts) if facts.sampling.reasoning is not None else None
