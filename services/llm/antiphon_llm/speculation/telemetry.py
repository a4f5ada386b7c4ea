"""What drafting did, as counters since boot."""

from __future__ import annotations

from collections.abc import Sequence


class DraftTelemetry:
    """Proposed and accepted drafts by position, and tokens of all decode rows.

    Rows without drafts count too: tokens over row steps is at least 1, and tells what drafting
    is worth to all that run.

    Attributes:
        accepted: drafts kept so far.
        proposed: drafts that were checked.
        release_failures: ended requests that the drafter failed to forget.
    """

    def __init__(self, depth: int) -> None:
        self._proposed = [0] * depth
        self._accepted = [0] * depth
        self._row_steps = self._tokens = 0
        self._undrafted: dict[str, int] = {}
        self.release_failures = 0

    @property
    def proposed(self) -> int:
        return sum(self._proposed)

    @property
    def accepted(self) -> int:
        return sum(self._accepted)

    def row(self, drafts: Sequence[int], tokens: int) -> None:
        """A decode row of a committed step, with padded drafts, drew so many tokens."""
        self._row_steps += 1
        self._tokens += tokens
        for place, draft in enumerate(drafts):
            if draft < 0:
                break
            self._proposed[place] += 1
            self._accepted[place] += place < tokens - 1

    def undrafted(self, reason: str) -> None:
        """A step with decode rows ran without drafts."""
        self._undrafted[reason] = self._undrafted.get(reason, 0) + 1

    def counters(self) -> dict[str, int]:
        """By name; positions count from 1."""
        counts = {"draft: row steps": self._row_steps, "draft: tokens": self._tokens}
        for place, (proposed, accepted) in enumerate(
            zip(self._proposed, self._accepted, strict=True), start=1
        ):
            if proposed:
                counts[f"draft: proposed {place}"] = proposed
                counts[f"draft: accepted {place}"] = accepted
        for reason, count in self._undrafted.items():
            counts[f"draft: none, {reason}"] = count
        if self.release_failures:
            counts["draft: release failures"] = self.release_failures
        return counts
