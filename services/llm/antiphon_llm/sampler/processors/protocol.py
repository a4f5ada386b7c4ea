"""What a processor is and what it is made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from antiphon_llm.messages import Sampling

from ..window import Window


class TokenRefused(Exception):
    """A drawn token is not one that a processor allows: its state and the draw disagree.

    ``reason`` is an ErrorReason name without prefix.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What processors of one request are made from."""

    sampling: Sampling
    prompt_ids: Sequence[int]
    end_ids: Sequence[int]
    """Ids that end the output, ascending."""
    vocabulary: int
    """Head width V."""
    unasked_ids: Sequence[int]
    """Ids of modalities that the request does not ask for."""
    drawn: list[int]
    """The request's output tokens: the row's own list, which processors only read."""


class Processor(Protocol):
    """One rule over a request's tokens; its state follows that request alone.

    Position p of a window is ruled by the drawn tokens and ``drafts[:p]``.
    """

    name: str
    """Its place in the registry."""

    @property
    def active(self) -> bool:
        """Whether ``fill`` may write, now or after any token that is in flight. False while it
        would write is a defect: nobody asks then."""
        ...

    def fill(self, window: Window, drafts: Sequence[int]) -> None:
        """Bars and forces ids at positions 0 to ``len(drafts)``; the window may be wider.

        Changes no state that later calls see. Drafts are ids; which of them this or another
        rule allows is not known yet.
        """
        ...

    def advance(self, token: int) -> None:
        """Takes a drawn token, before it is appended to the row's ``drawn``.

        Raises:
            TokenRefused: the rule does not allow it; the request ends with that error.
        """
        ...

    def rewind(self, outputs: int) -> None:
        """Forgets all but the first ``outputs`` tokens; the row's ``drawn`` has just these."""
        ...
