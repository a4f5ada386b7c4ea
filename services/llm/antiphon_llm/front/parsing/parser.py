"""One output's parser: text in, pieces out."""

from __future__ import annotations

from antiphon_llm.front.parsing.pieces import Piece
from antiphon_llm.front.parsing.reader import Reader, Steps


class OutputParser:
    """Parses one output.

    Whatever the text is cut into, the pieces are the same but for where adjacent ones are cut.

    Args:
        reader: fresh.
        steps: a reading of the whole output with this reader.
    """

    __slots__ = ("_reader", "_steps")

    def __init__(self, reader: Reader, steps: Steps) -> None:
        self._reader = reader
        self._steps = steps
        next(steps)

    @property
    def state(self) -> str:
        """content, reasoning or call: what the next text belongs to, as far as is decided."""
        return self._reader.state

    @property
    def calls(self) -> int:
        """Calls found so far."""
        return self._reader.calls

    def push(self, text: str) -> list[Piece]:
        """Takes more text; returns what is decided by it."""
        if text:
            self._reader.feed(text)
            next(self._steps, None)
        return self._collect()

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """The output ended, or was cut; returns the rest."""
        self._reader.end(cut=cut)
        next(self._steps, None)
        return self._collect()

    def _collect(self) -> list[Piece]:
        pieces, self._reader.pieces = self._reader.pieces, []
        return pieces
