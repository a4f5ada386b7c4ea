"""Where the first words of a reply are handed to the voice, when no punctuation does it."""

from __future__ import annotations

_CLAUSE_MARKS = frozenset(".,;:!?\n\u2026\u2014\u3001\u3002\uff0c\uff01\uff1f\uff1a\uff1b")


class FirstClause:
    """Watches the beginning of a reply's text.

    The voice starts at a clause; a reply that opens with a long one keeps the listener waiting.
    After ``word_limit`` words without a mark the text so far is to be spoken. The place depends
    on the joined text only, never on how it arrived.

    Args:
        word_limit: words of the first clause at most; 0 leaves the cut to the voice.
    """

    def __init__(self, word_limit: int) -> None:
        self._limit = word_limit
        self._words = 0
        self._in_word = False
        self._over = word_limit == 0

    def cut(self, piece: str) -> int | None:
        """Feeds the next piece of the text.

        Returns:
            Characters of this piece that belong to the first clause, when it ends in it; the
            voice is to be flushed there. Once at most.
        """
        if self._over:
            return None
        for index, character in enumerate(piece):
            if character in _CLAUSE_MARKS:
                self._over = True
                return None
            if character.isspace():
                self._in_word = False
            elif not self._in_word:
                if self._words == self._limit:
                    self._over = True
                    return index
                self._in_word = True
                self._words += 1
        return None
