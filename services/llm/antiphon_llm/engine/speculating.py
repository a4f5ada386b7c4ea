"""Decides before each step which requests draft, and how deep; learns from what came of it."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon_core.logs import get_logger

from antiphon_llm.speculation.breaker import Breaker
from antiphon_llm.speculation.depth import Acceptance, DepthPolicy
from antiphon_llm.speculation.drafter import Drafter, Proposal
from antiphon_llm.speculation.telemetry import DraftTelemetry
from antiphon_llm.speculation.valve import Open, Valve

from .failures import FailureKind, classify
from .plan import StepPlan
from .request import Request
from .runner import StepResult

_log = get_logger(__name__)


class Speculation:
    """Fills ``Request.drafts`` between steps.

    Args:
        drafter: what proposes.
        depth: most drafts of a row; requests may ask for fewer.
        adaptive: whether a step takes fewer where that is faster; else as many as are proposed.
        valve: whether a load drafts at all.
        failure_limit: the breaker's; -1 is none.
        residual: whether drafts with distributions are accepted by them. Requests with a seed of
            their own are not: their tokens must not depend on what was drafted.

    Attributes:
        telemetry: proposed and accepted drafts.
    """

    def __init__(
        self,
        drafter: Drafter,
        *,
        depth: int,
        adaptive: bool = False,
        valve: Valve | None = None,
        failure_limit: int = 5,
        residual: bool = False,
    ) -> None:
        if not 1 <= depth <= drafter.max_depth:
            raise ValueError(
                f"draft_depth must lie between 1 and {drafter.max_depth} for the drafter "
                f"{drafter.name}, got {depth}"
            )
        self.drafter = drafter
        self.depth = depth
        self.telemetry = DraftTelemetry(depth)
        self._policy = DepthPolicy()
        # High at first, so that drafting is tried.
        self._acceptance = Acceptance(0.75, weight=8.0, memory=0.98)
        self._acceptances: dict[Request, Acceptance] = {}
        self._adaptive = adaptive
        self._residual = residual
        self._drafted = False
        """Whether the drafter answered for the step that comes next."""
        self._valve = valve if valve is not None else Open()
        self._breaker = Breaker(failure_limit)

    def expects(self, requests: Sequence[Request]) -> bool:
        """Whether these decoding requests may draft once what is in flight is committed, so that
        the next plan had better wait for it."""
        rooms = [self._room(request) for request in requests]
        if not any(rooms) or not self._valve.open(len(requests)):
            return False
        try:
            expected = self.drafter.expects(requests)
        except Exception as error:
            self._failed(error)
            return False
        likely = [room * hope for room, hope in zip(rooms, expected, strict=True)]
        return self._choose(requests, requests, likely) > 0

    def propose(self, requests: Sequence[Request]) -> None:
        """Sets the drafts of the next decode rows, of which no token may be in flight.

        Raises DrafterBroken, and what leaves the device unusable.
        """
        for request in requests:
            request.drafts, request.draft_q = [], None
        reason = self._propose(requests) if requests else ""
        if reason:
            self.telemetry.undrafted(reason)

    def took(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        """A step was committed; ``seconds`` of the loop went into it.

        Raises DrafterBroken, and what leaves the device unusable.
        """
        if result.drafter_error is not None:
            self._failed(result.drafter_error)
        elif self._drafted:
            self._breaker.succeeded()
        self._drafted = False
        if not plan.decode_rows:
            return
        tokens = 0
        for row, draws in result.draws[: plan.decode_rows]:
            tokens += len(draws)
            self.telemetry.row(row.drafts, len(draws))
            proposed = row.proposed
            if proposed:
                accepted = len(draws) - 1
                refused = int(proposed > accepted)
                self._acceptance.took(accepted, refused)
                if row.current:
                    self._acceptance_of(row.request).took(accepted, refused)
        if not plan.prefill_tokens:
            self._policy.costs.took(plan.decode_rows, 1 + plan.draft_depth, seconds)
            self._valve.took(plan.decode_rows, tokens, seconds)

    def release(self, request: Request) -> None:
        """The request has ended."""
        self._acceptances.pop(request, None)
        try:
            self.drafter.release(request)
        except Exception:
            # The end of a request must not depend on it; what is not released shows in memory.
            self.telemetry.release_failures += 1
            _log.exception("drafter_release_failed", request_id=request.request_id)

    def counters(self) -> dict[str, int]:
        """What drafting did since boot, by name; ``draft: degraded`` is 1 while it fails."""
        counts = self.telemetry.counters()
        if self._breaker.total:
            counts["draft: failures"] = self._breaker.total
            counts["draft: degraded"] = int(self._breaker.degraded)
        return counts

    def _propose(self, requests: Sequence[Request]) -> str:
        """Why the step has no drafts; empty if it has."""
        rooms = [self._room(request) for request in requests]
        if not any(rooms):
            return "not asked for, or near the end"
        if not self._valve.open(len(requests)):
            return "load"
        drafting = [request for request, room in zip(requests, rooms, strict=True) if room]
        rooms = [room for room in rooms if room]
        probe = self._adaptive and self._policy.probes(len(requests))
        depth = self._choose(requests, drafting, rooms, probe=probe)
        if not depth:
            return "probe" if probe else "does not pay"
        try:
            proposal = self.drafter.draft(drafting, depth)
            _check(proposal, len(drafting), depth)
        except Exception as error:
            self._failed(error)
            return "drafter failed"
        self._drafted = True
        lengths = [
            min(len(tokens), room) for tokens, room in zip(proposal.tokens, rooms, strict=True)
        ]
        if not any(lengths):
            return "no proposal"
        if not probe:
            depth = self._choose(requests, drafting, lengths)
        if not depth:
            return "does not pay"
        for place, (request, length) in enumerate(zip(drafting, lengths, strict=True)):
            request.drafts = proposal.tokens[place][: min(length, depth)]
            if self._residual and proposal.q is not None and not _seeded(request):
                request.draft_q = proposal.q[place]
        return ""

    def _choose(
        self,
        requests: Sequence[Request],
        drafting: Sequence[Request],
        lengths: Sequence[int],
        *,
        probe: bool = False,
    ) -> int:
        """The depth of a step of ``requests``, of which some could draft so many tokens."""
        if not self._adaptive:
            return max(lengths)
        shares = [self._acceptance_of(request).share for request in drafting]
        return self._policy.choose(len(requests), lengths, shares, probe=probe)

    def _acceptance_of(self, request: Request) -> Acceptance:
        """Of one request; at first that of all."""
        found = self._acceptances.get(request)
        if found is None:
            found = self._acceptances[request] = Acceptance(
                self._acceptance, weight=2.0, memory=0.95
            )
        return found

    def _room(self, request: Request) -> int:
        """Drafts that the request may have."""
        if request.sampler is None:
            return 0
        asked = request.sampler.sampling.draft_depth
        return min(self.depth if asked < 0 else asked, request.draft_room)

    def _failed(self, error: Exception) -> None:
        kind = classify(error)
        _log.error("drafter_failed", drafter=self.drafter.name, kind=kind.name, exc_info=error)
        if kind <= FailureKind.POISONED:
            raise error
        self._breaker.failed(error, memory=kind is FailureKind.OUT_OF_MEMORY)


def _seeded(request: Request) -> bool:
    return request.sampler is not None and request.sampler.sampling.seeded


def _check(proposal: Proposal, requests: int, depth: int) -> None:
    """A drafter that answers with another shape would put drafts into other rows."""
    if len(proposal.tokens) != requests or any(len(tokens) > depth for tokens in proposal.tokens):
        raise ValueError(
            f"a proposal for {len(proposal.tokens)} rows of up to "
            f"{max(map(len, proposal.tokens), default=0)} tokens, asked for {requests} of {depth}"
        )
