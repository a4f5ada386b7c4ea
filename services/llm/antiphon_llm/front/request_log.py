"""Live and recent requests: receipts, metrics and the records of GetSnapshot."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from antiphon_core import metrics
from antiphon_core.errors import AntiphonError
from antiphon_core.logs import get_logger
from antiphon_core.node_types import RequestPhase, RequestRecord

from antiphon_llm.front.generation import Generation

RING_SIZE = 4096
"""Finished requests that are remembered."""

_OUTCOMES = ("stop", "length", "context", "cancelled", "deadline")

log = get_logger("request")


class RequestLog:
    """Knows every live generation, and what became of the last ones."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._live: dict[Generation, None] = {}
        self._recent: deque[RequestRecord] = deque(maxlen=RING_SIZE)
        counted = metrics.counter(
            "requests_total", "Requests that ended", ("operation", "finish_reason")
        )
        self._ended = {
            outcome: counted.labels("generate", outcome) for outcome in (*_OUTCOMES, "error")
        }
        in_flight = metrics.gauge("requests_in_flight", "Requests that run or wait")
        in_flight.set_function(lambda: len(self._live))
        depth = metrics.gauge("queue_depth", "Requests that wait for a row", ("class",))
        depth.labels("interactive").set_function(lambda: self._waiting(interactive=True))
        depth.labels("batch").set_function(lambda: self._waiting(interactive=False))
        first, long = metrics.FIRST_BUCKETS, metrics.DURATION_BUCKETS
        self._queue_wait = metrics.histogram("queue_wait_seconds", "Wait for a row", buckets=first)
        self._first_token = metrics.histogram(
            "time_to_first_token_seconds", "Arrival to first token", buckets=first
        )
        self._per_token = metrics.histogram(
            "time_per_output_token_seconds",
            "Mean time per token after the first of a choice",
            buckets=metrics.TPOT_BUCKETS,
        )
        self._duration = metrics.histogram(
            "request_duration_seconds", "Arrival to end", buckets=long
        )
        tokens = metrics.counter("tokens_total", "Tokens of ended requests", ("type",))
        self._tokens = {kind: tokens.labels(kind) for kind in ("input", "cached", "output")}
        self._refused = metrics.counter(
            "shed_total", "Requests refused before the engine saw them", ("layer", "reason")
        )

    def begin(self, generation: Generation) -> None:
        """A request was submitted."""
        self._live[generation] = None

    def end(self, generation: Generation) -> None:
        """A request ended, however; its receipt is logged."""
        self._live.pop(generation, None)
        record = _record(generation, self._model)
        self._recent.append(record)
        self._count(generation)
        scope, error = generation.prepared.scope, generation.error
        log.info(
            "receipt",
            request_id=scope.request_id,
            model=self._model,
            adapter=generation.prepared.adapter,
            priority="interactive" if scope.interactive else "batch",
            choices=len(generation.choices),
            prompt_tokens=generation.usage.prompt_tokens,
            cached_tokens=generation.usage.cached_tokens,
            output_tokens=generation.usage.output_tokens,
            finish=generation.outcome,
            reason=error.reason if error else "",
            first_token_s=_rounded(generation.first_token_after),
            queued_s=_rounded(generation.timings.queued),
            duration_s=_rounded(generation.ended_after),
        )

    def refused(self, request_id: str, error: AntiphonError) -> None:
        """A request was refused before the engine saw it."""
        self._refused.labels("llm_front", error.reason).inc()
        log.warning(
            "refused",
            layer="llm_front",
            request_id=request_id,
            reason=error.reason,
            field=error.field,
            limit=error.metadata.get("limit", ""),
            observed=error.metadata.get("observed", ""),
        )

    def find(self, request_id: str) -> Generation | None:
        """The live generation of this request id."""
        for generation in self._live:
            if generation.prepared.scope.request_id == request_id:
                return generation
        return None

    def records(self) -> Iterator[RequestRecord]:
        """Finished requests, then live ones; newest last in each."""
        yield from self._recent
        for generation in self._live:
            yield _record(generation, self._model)

    def _waiting(self, *, interactive: bool) -> int:
        """Counted over a copy: a scrape runs in another thread."""
        return sum(
            generation.admitted_after is None
            and generation.prepared.scope.interactive == interactive
            for generation in list(self._live)
        )

    def _count(self, generation: Generation) -> None:
        outcome = generation.outcome if generation.outcome in _OUTCOMES else "error"
        self._ended[outcome].inc()
        usage = generation.usage
        self._tokens["input"].inc(usage.prompt_tokens)
        self._tokens["cached"].inc(usage.cached_tokens)
        self._tokens["output"].inc(usage.output_tokens)
        if generation.ended_after is not None:
            self._duration.observe(generation.ended_after)
        if generation.first_token_after is None or generation.ended_after is None:
            return
        self._first_token.observe(generation.first_token_after)
        self._queue_wait.observe(generation.timings.queued)
        later = max(choice.output_tokens for choice in generation.choices) - 1
        if later > 0:
            spent = generation.ended_after - generation.first_token_after
            self._per_token.observe(spent / later)


def _record(generation: Generation, model: str) -> RequestRecord:
    phases = [RequestPhase("queued", 0.0, generation.admitted_after or generation.ended_after)]
    if generation.admitted_after is not None:
        start = min(generation.timings.queued or generation.admitted_after, _end(generation))
        first = generation.first_token_after
        phases[0] = RequestPhase("queued", 0.0, start)
        phases.append(RequestPhase("prefill", start, first or generation.ended_after))
        if first is not None:
            phases.append(RequestPhase("answer", first, generation.ended_after))
    return RequestRecord(
        request_id=generation.prepared.scope.request_id,
        operation="generate",
        model=model,
        arrived_at=generation.arrived_at,
        phases=phases,
        finish_reason=generation.outcome,
        input_count=generation.usage.prompt_tokens,
        output_count=generation.usage.output_tokens,
    )


def _end(generation: Generation) -> float:
    """The latest moment that the queue phase can reach."""
    moments = (generation.first_token_after, generation.ended_after, generation.admitted_after)
    return min(moment for moment in moments if moment is not None)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
