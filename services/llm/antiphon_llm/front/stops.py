"""Stop strings over a stream of text.

Text that was given out is never taken back: the longest end of the text that could begin a
stop string is held until more text decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


class StopScanner:
    """Searches one output stream for the earliest stop string, the longest among those.

    Each push looks at the new text and at most ``longest stop - 1`` characters before it, so
    the whole costs time linear in the text.

    Args:
        stops: non-empty strings; none makes the scanner pass everything on.
        include_stop: whether the matched string belongs to the output.
    """

    __slots__ = ("_held", "_include", "_longest", "_pattern", "_prefixes", "matched")

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        ordered = sorted(set(stops), key=len, reverse=True)
        self._longest = len(ordered[0]) if ordered else 0
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._prefixes = {stop[:size] for stop in ordered for size in range(1, len(stop))}
        self._include = include_stop
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the stream."""

    def push(self, text: str) -> str:
        """The text that may be given out now. After a match nothing more comes."""
        if self._pattern is None:
            return text
        if self.matched is not None:
            return ""
        window = self._held + text
        # A longer stop string may begin before a shorter one that is already complete, so a
        # match counts only when no unfinished candidate starts at or before it.
        match = self._pattern.search(window)
        pending = self._pending_start(window)
        if match is not None and match.start() < pending:
            self.matched = match[0]
            self._held = ""
            return window[: match.end() if self._include else match.start()]
        self._held = window[pending:]
        return window[:pending]

    def finish(self) -> str:
        """The held text; a match that was waiting for a longer candidate is decided now."""
        window, self._held = self._held, ""
        if self._pattern is None or self.matched is not None:
            return ""
        match = self._pattern.search(window)
        if match is None:
            return window
        self.matched = match[0]
        return window[: match.end() if self._include else match.start()]

    def _pending_start(self, window: str) -> int:
        """Where the earliest suffix begins that is a proper prefix of a stop string."""
        for start in range(max(0, len(window) - self._longest + 1), len(window)):
            if window[start:] in self._prefixes:
                return start
        return len(window)
