"""Decode rows with drafts: all of one width, if the step and the pool have room for them."""

from __future__ import annotations

from collections.abc import Sequence

from .holdings import Holdings
from .limits import SchedulerLimits
from .plan import StepPlan
from .request import Request


class DraftRows:
    """Plans the decode rows of a step that drafts.

    Drafts take nobody's entries: where what is available does not do, the step runs without.

    Attributes:
        refused: steps that ran without the drafts that were proposed, by reason.
    """

    def __init__(self, limits: SchedulerLimits, holdings: Holdings) -> None:
        self._limits = limits
        self._holdings = holdings
        self.refused: dict[str, int] = {}

    def plan(self, plan: StepPlan, requests: Sequence[Request], most_tokens: int) -> bool:
        """Adds the rows, as wide as the deepest proposal, with their entries; or adds nothing.

        ``requests`` decode and hold their rows. Their proposals are used up in either case.
        """
        proposals = [request.drafts[: request.draft_room] for request in requests]
        q = [request.draft_q for request in requests]
        for request in requests:
            request.drafts, request.draft_q = [], None
        depth = max(map(len, proposals), default=0)
        reason = self._refusal(requests, 1 + depth, most_tokens) if depth else "near the end"
        if reason:
            name = f"draft: none, {reason}"
            self.refused[name] = self.refused.get(name, 0) + 1
            return False
        for request, drafts, drawn_from in zip(requests, proposals, q, strict=True):
            self._holdings.extend(request, request.written + 1 + depth)
            request.planned = plan.number
            plan.add(request, 1 + depth, (*drafts, *[-1] * (depth - len(drafts))))
            plan.rows[-1].q = drawn_from
        return True

    def _refusal(self, requests: Sequence[Request], width: int, most_tokens: int) -> str:
        """Why the rows cannot be so wide; empty if they can."""
        if len(requests) * width + self._limits.entry_tokens > most_tokens:
            return "step budget"
        tables = self._holdings.tables
        if max(request.written for request in requests) + width > tables.context_limit:
            return "context limit"
        need = sum(tables.need(request.row, request.written + width) for request in requests)
        return "entries" if need > self._holdings.available else ""
