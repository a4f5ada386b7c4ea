"""Makes real what a step computed: progress, outputs, ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from antiphon_core.logs import get_logger

from antiphon_llm.sampler.draw import Draw

from .failures import FailureKind, classify, error_reason
from .live import LiveRequests
from .outbox import Outbox
from .plan import PlannedRow, StepPlan
from .request import Request
from .runner import ScoredChunk, StepResult
from .scheduler import Scheduler

_log = get_logger(__name__)


class StepCommit:
    """Applies collected steps, oldest first. What belongs to a row that was lost is dropped.

    Attributes:
        prefill_tokens: prompt tokens of all committed steps.
        decode_tokens: tokens that decode rows drew.
    """

    def __init__(
        self, scheduler: Scheduler, live: LiveRequests, outbox: Outbox, *, context_limit: int
    ) -> None:
        self._scheduler = scheduler
        self._live = live
        self._outbox = outbox
        self._context_limit = context_limit
        self.prefill_tokens = self.decode_tokens = 0

    def __call__(self, plan: StepPlan, result: StepResult) -> None:
        """Commits a step's rows one by one.

        A row that fails ends its own request. What concerns more than the row is raised when
        all rows have been committed.
        """
        now = time.monotonic()
        self.prefill_tokens += plan.prefill_tokens
        self.decode_tokens += sum(len(draws) for _, draws in result.draws[: plan.decode_rows])
        failures: list[Exception] = []
        for row in plan.rows:
            if not row.request.timings.admitted:
                self._row(failures, row, self._admitted, row, plan.begun)
        for chunk in result.scored:
            self._row(failures, chunk.row, self._scores, chunk)
        for row, part in result.pooled:
            self._row(failures, row, self._pool, row, part)
        for row, draws in result.draws:
            self._row(failures, row, self._draws, row, draws, now)
        if failures:
            raise failures[0]

    def _row(
        self,
        failures: list[Exception],
        row: PlannedRow,
        action: Callable[..., None],
        *arguments: Any,
    ) -> None:
        """Does ``action`` for a row that is still current; what it raises ends that request, and
        is added to ``failures`` where it is not the row's own fault."""
        if row.epoch != row.request.epoch:
            return
        try:
            action(*arguments)
        except Exception as error:
            kind = classify(error)
            _log.exception("row_failed", request_id=row.request.request_id, kind=kind.name)
            self._live.finish(
                row.request, "error", error=f"{error}", error_reason=error_reason(kind)
            )
            if kind is not FailureKind.REQUEST:
                failures.append(error)

    def _admitted(self, row: PlannedRow, begun: float) -> None:
        request = row.request
        request.timings.admitted = begun
        if request.sampler is not None:
            self._outbox.admitted(request.request_id, request.cached_tokens)

    def _scores(self, chunk: ScoredChunk) -> None:
        request = chunk.row.request
        request.scored.extend(chunk.items[len(request.scored) - chunk.first :])
        if len(request.scored) == request.prompt_length and not request.scores_sent:
            request.scores_sent = True
            self._outbox.prompt_logprobs(request.request_id, request.scored)

    def _pool(self, row: PlannedRow, part: np.ndarray) -> None:
        request, pooled = row.request, row.request.pooled
        assert pooled is not None
        pooled.add(part)
        if row.end == len(request.tokens):
            self._live.finish(request, "stop", vector=pooled.read(len(request.tokens)))

    def _draws(self, row: PlannedRow, draws: list[Draw], now: float) -> None:
        """Commits the row's tokens one by one; those behind an end are dropped."""
        if row.drafts:
            accepted = len(draws) - 1
            row.request.accepted_drafts += accepted
            row.request.rejected_drafts += row.proposed - accepted
        self._scheduler.trim(row, len(draws))
        for drawn in draws:
            if not row.current:
                return
            self._token(row.request, drawn, now)

    def _token(self, request: Request, drawn: Draw, now: float) -> None:
        if drawn.error:
            reason = drawn.reason or "BAD_LOGITS"
            self._live.finish(request, "error", error=drawn.error, error_reason=reason)
            return
        if not request.timings.first_token:
            request.timings.first_token = now
        request.commit(drawn.token)
        self._outbox.token(request.request_id, drawn)
        if drawn.token in request.stop_ids:
            self._live.finish(request, "stop", stop_token=drawn.token)
        elif request.outputs >= request.max_tokens:
            self._live.finish(request, "length")
        elif len(request.tokens) >= self._context_limit:
            self._live.finish(request, "context")
