"""What the engine needs of a grammar library: compile a constraint, then follow tokens."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from antiphon_llm.messages import Constraint

KINDS = ("json_schema", "json_object", "regex", "choice", "ebnf", "structural_tag")
"""Kinds of constraints that every backend compiles."""


class GrammarError(ValueError):
    """The constraint does not compile; the message is for its author."""


class Matcher(Protocol):
    """Where one output stands in its grammar."""

    @property
    def ended(self) -> bool:
        """Whether an end id was accepted; nothing is accepted after it."""
        ...

    def fill(self, words: np.ndarray) -> None:
        """Sets the bits of the ids that may come next, and clears all others.

        ``words`` is uint32 (ceil(V/32)), bit ``id & 31`` of word ``id >> 5``. Not after the end.
        """
        ...

    def accept(self, token: int) -> bool:
        """Takes a token; False, and nothing changes, where it may not come next."""
        ...

    def rollback(self, count: int) -> None:
        """Forgets the last ``count`` accepted tokens."""
        ...


class Grammar(Protocol):
    """A compiled constraint; shared by all outputs that it binds."""

    @property
    def nbytes(self) -> int:
        """Memory that it holds."""
        ...

    def matcher(self, end_ids: list[int]) -> Matcher:
        """A new output's place, at the beginning; ``end_ids`` (at least one) end it."""
        ...


class GrammarBackend(Protocol):
    """Compiles constraints for one vocabulary; safe in several threads at once."""

    @property
    def identity(self) -> str:
        """Changes with the library, its options and the vocabulary."""
        ...

    def compile(self, constraint: Constraint) -> Grammar:
        """Takes milliseconds to seconds.

        Raises:
            GrammarError: the source is wrong, or nothing can satisfy it.
        """
        ...
