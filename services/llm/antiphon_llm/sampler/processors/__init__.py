"""Rules over which ids a request may draw, in one order: masks first, forced ids last.

A kind of processor that is built from the request's own settings has its builder here. One
that needs more, as a grammar does, is made elsewhere and added to the row by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .forced_stop import ForcedStop, forced_stop
from .min_tokens import min_tokens
from .ngram_block import ngram_block
from .protocol import Processor, RowFacts, TokenRefused
from .thinking import Thinking, thinking
from .token_ids import modality, token_ids

__all__ = [
    "REGISTRY",
    "ForcedStop",
    "Processor",
    "ProcessorKind",
    "RowFacts",
    "Thinking",
    "TokenRefused",
    "place_of",
    "stock_processors",
]


@dataclass(frozen=True, slots=True)
class ProcessorKind:
    """One kind of rule."""

    name: str
    build: Callable[[RowFacts], Processor | None] | None
    """None where a request needs none; no builder where the row is given the processor."""


REGISTRY: tuple[ProcessorKind, ...] = (
    ProcessorKind("token_ids", token_ids),
    ProcessorKind("min_tokens", min_tokens),
    ProcessorKind("ngram_block", ngram_block),
    ProcessorKind("modality", modality),
    ProcessorKind("grammar", None),
    ProcessorKind("thinking", thinking),
    ProcessorKind("forced_stop", forced_stop),
)
_PLACES = {kind.name: place for place, kind in enumerate(REGISTRY)}


def place_of(name: str) -> int:
    """A kind's place in the order; an unknown name raises KeyError."""
    return _PLACES[name]


def stock_processors(facts: RowFacts) -> list[Processor]:
    """The processors that a request's settings ask for, in the registry's order."""
    built = (kind.build(facts) for kind in REGISTRY if kind.build is not None)
    return [processor for processor in built if processor is not None]
