"""What a parser finds in an output, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the person."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Text of the reasoning trace."""

    text: str


@dataclass(frozen=True, slots=True)
class CallOpened:
    """A tool call begins; its name is whole."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """The next characters of the open call's arguments, which together are JSON."""

    text: str


@dataclass(frozen=True, slots=True)
class CallClosed:
    """The open call ended; without it the output was cut inside the call."""


Piece = Content | Thought | CallOpened | Arguments | CallClosed


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """The same output in as few pieces as there can be."""
    result: list[Piece] = []
    for piece in pieces:
        last = result[-1] if result else None
        for kind in (Content, Thought, Arguments):
            if isinstance(piece, kind) and isinstance(last, kind):
                result[-1] = kind(last.text + piece.text)
                break
        else:
            result.append(piece)
    return result
