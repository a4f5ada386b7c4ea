"""Which part of a growing transcript later partials keep."""

from __future__ import annotations


class StablePrefix:
    """Agreement of the last two hypotheses, at word boundaries, never taken back.

    A hypothesis that contradicts the stable part is withheld: the promise to readers of
    partials holds, and the final, which comes from the whole utterance, may still differ.
    """

    def __init__(self) -> None:
        self._stable = ""
        self._previous = ""

    def feed(self, text: str) -> tuple[str, int] | None:
        """(text, stable characters) to publish; None when the text contradicts."""
        if not text.startswith(self._stable):
            return None
        agreed = _agreement(self._previous, text)
        self._previous = text
        if agreed > len(self._stable):
            self._stable = text[:agreed]
        return text, len(self._stable)


def _agreement(first: str, second: str) -> int:
    """Length of the words that both texts begin with; the last word of ``second`` may still grow
    and does not count."""
    length = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        length += 1
    if first[length : length + 1] in ("", " ") and second[length : length + 1] == " ":
        return length
    return max(0, second.rfind(" ", 0, length))
