"""Every live request, and the only way out of life."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable

from antiphon_core.logs import get_logger

from antiphon_llm.messages import Embedding, Finish

from .outbox import Outbox
from .request import Request, State
from .scheduler import Scheduler

_log = get_logger(__name__)

NATURAL_ENDS = frozenset({"stop", "length", "context"})
"""Ends whose keys and values are worth keeping for a continuation."""

_HEAP_SLACK = 64
"""Finished requests that the heap of deadlines may hold beside the live ones."""


class LiveRequests:
    """Live requests by id, their deadlines, and the one finish routine.

    ``answer`` sends an Embedding; generated output goes through ``outbox``.

    Attributes:
        ended: called once for each request, when it holds nothing any more.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        outbox: Outbox,
        answer: Callable[[Embedding], None],
        *,
        wall_clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._outbox = outbox
        self._answer = answer
        self.ended: Callable[[Request], None] = lambda request: None
        self._wall_clock = wall_clock
        self._monotonic = monotonic
        self._by_id: dict[str, Request] = {}
        self._deadlines: list[tuple[float, int, Request]] = []
        self._service_seconds = 1.0

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, request_id: str) -> Request | None:
        """The live request of this id."""
        return self._by_id.get(request_id)

    def using(self, adapter_version: int) -> int:
        """How many use the adapter of this version."""
        return sum(request.adapter_version == adapter_version for request in self._by_id.values())

    def add(self, request: Request) -> None:
        """Takes a new request in and queues it."""
        self._by_id[request.request_id] = request
        if request.deadline:
            if len(self._deadlines) > 2 * len(self._by_id) + _HEAP_SLACK:
                self._forget_finished_deadlines()
            heapq.heappush(self._deadlines, (request.deadline, request.sequence, request))
        self._scheduler.enqueue(request)

    def expire(self) -> None:
        """Finishes the requests whose deadline has passed."""
        now = self._wall_clock()
        while self._deadlines and (
            self._deadlines[0][2].state is State.FINISHED or self._deadlines[0][0] <= now
        ):
            self.finish(heapq.heappop(self._deadlines)[2], "deadline")

    def _forget_finished_deadlines(self) -> None:
        """Finished requests would else be held until their deadline comes."""
        self._deadlines = [item for item in self._deadlines if item[2].state is not State.FINISHED]
        heapq.heapify(self._deadlines)

    def retry_after(self) -> float:
        """Seconds after which a refused request may find room: one queue's worth of service."""
        turns = (self._scheduler.waiting + 1) / self._scheduler.limits.max_rows
        return min(60.0, max(0.5, self._service_seconds * turns))

    def finish(
        self,
        request: Request,
        reason: str,
        *,
        error: str = "",
        error_reason: str = "",
        stop_token: int = -1,
        vector: list[float] | None = None,
    ) -> None:
        """Ends a request, whatever the cause: frees what it holds, sends its one terminal.

        Calling it again for the same request does nothing.
        """
        if request.state is State.FINISHED:
            return
        self._scheduler.remove(request, publish=reason in NATURAL_ENDS)
        self._by_id.pop(request.request_id, None)
        request.move(State.FINISHED)
        self.ended(request)
        self._tell(request, reason, error, error_reason, stop_token, vector)

    def finish_all(self, error: str, error_reason: str) -> None:
        """Ends every live request with an error, even where what it holds cannot be freed."""
        for request in list(self._by_id.values()):
            try:
                self.finish(request, "error", error=error, error_reason=error_reason)
            except Exception:
                _log.exception("finish_failed", request_id=request.request_id)
                self._tell(request, "error", error, error_reason)
        self._by_id.clear()

    def _tell(
        self,
        request: Request,
        reason: str,
        error: str,
        error_reason: str,
        stop_token: int = -1,
        vector: list[float] | None = None,
    ) -> None:
        """Sends the terminal."""
        if request.pooled is not None:
            self._answer(_embedding(request, reason, error, error_reason, vector))
            return
        now = self._monotonic()
        times = request.timings
        admitted = times.admitted or now
        first_token = times.first_token or now
        if times.admitted:
            self._service_seconds += 0.2 * (now - admitted - self._service_seconds)
        self._outbox.finished(
            Finish(
                request_id=request.request_id,
                reason=reason,
                error=error,
                error_reason=error_reason,
                stop_token=stop_token,
                prompt_tokens=request.prompt_length,
                cached_tokens=request.cached_tokens,
                output_tokens=request.outputs,
                queue_seconds=admitted - times.submitted,
                prefill_seconds=max(0.0, first_token - admitted),
                decode_seconds=max(0.0, now - first_token),
                accepted_drafts=request.accepted_drafts,
                rejected_drafts=request.rejected_drafts,
                reasoning_tokens=request.sampler.reasoning_tokens(request.outputs)
                if request.sampler is not None
                else -1,
            )
        )


def _embedding(
    request: Request, reason: str, error: str, error_reason: str, vector: list[float] | None
) -> Embedding:
    if vector is not None:
        return Embedding(request.request_id, vector)
    fallback = {"cancelled": "CANCELLED", "deadline": "DEADLINE"}.get(reason, "INTERNAL")
    return Embedding(request.request_id, [], error or reason, error_reason or fallback)
