"""An operator's order to end a request: its next token is the end token."""

from __future__ import annotations

from collections.abc import Sequence

from ..window import Window
from .protocol import RowFacts


class ForcedStop:
    """Rules nothing until it is armed, then leaves the end id alone possible."""

    name = "forced_stop"

    def __init__(self) -> None:
        self._end_id = -1

    @property
    def active(self) -> bool:
        """See Processor."""
        return self._end_id >= 0

    def arm(self, end_id: int) -> None:
        """Ends the request with this id at the next position that is drawn."""
        self._end_id = end_id

    def fill(self, window: Window, drafts: Sequence[int]) -> None:
        """See Processor."""
        if self._end_id >= 0:
            for place in range(len(drafts) + 1):
                window.force(place, self._end_id)

    def advance(self, token: int) -> None:
        """See Processor; nothing follows the tokens."""

    def rewind(self, outputs: int) -> None:
        """See Processor; nothing follows the tokens."""


def forced_stop(facts: RowFacts) -> ForcedStop:
    """Every request can be stopped."""
    return ForcedStop()
