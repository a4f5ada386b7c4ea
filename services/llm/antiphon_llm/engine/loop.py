"""The step loop: take messages, plan, run, commit, tell the front."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from antiphon_core.ipc.endpoint import Endpoint
from antiphon_core.logs import get_logger

from antiphon_llm.messages import Cancel, EmbedSubmit, Fault, Gauges, Shutdown, Submit
from antiphon_llm.sampler.draw import Draw

from .intake import Intake
from .live import LiveRequests
from .memory import resident_bytes
from .outbox import Outbox
from .plan import StepPlan
from .request import PooledVector, Request
from .runner import Runner, StepResult
from .scheduler import Scheduler

_log = get_logger(__name__)

IDLE_SECONDS = 1.0
"""Longest silence towards the front."""


class EngineLoop:
    """Runs on the engine's main thread until a Shutdown arrives."""

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        scheduler: Scheduler,
        runner: Runner,
        live: LiveRequests,
        intake: Intake,
        outbox: Outbox,
        context_limit: int,
        fallbacks: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self.scheduler = scheduler
        self.live = live
        self.intake = intake
        self.outbox = outbox
        self._endpoint = endpoint
        self._runner = runner
        self._context_limit = context_limit
        self._fallbacks = fallbacks
        self._stopping = False
        self._steps = self._prefill_tokens = self._decode_tokens = 0
        self._step_seconds = 0.0
        self._last_tick = time.monotonic()
        self._resident = (0.0, 0)

    def run(self) -> None:
        """Steps while there is work and sleeps while there is none; returns at Shutdown.

        What escapes a step ends every request with an error and goes to the front as a
        Fault; the exception is raised on, for the process to exit with.
        """
        try:
            while not self._stopping:
                if not self.live:
                    self._publish()
                    self._endpoint.wait(IDLE_SECONDS)
                self.take_messages()
                if self.live and not self._stopping:
                    self.step()
                    self._publish()
        except Exception as defect:
            _log.exception("step_failed", live=len(self.live))
            self.live.finish_all(f"the engine failed: {defect}", "WORKER_DIED")
            self._publish()
            self._endpoint.send(Fault(f"{type(defect).__name__}: {defect}", "INTERNAL", "serving"))
            raise

    def take_messages(self) -> None:
        """Applies everything that the front has sent, then the deadlines."""
        for message in self._endpoint.drain():
            if isinstance(message, Submit | EmbedSubmit):
                self.intake.submit(message)
            elif isinstance(message, Cancel):
                self.intake.cancel(message)
            elif isinstance(message, Shutdown):
                self._stopping = True
            else:
                raise TypeError(f"unexpected message {type(message).__name__}")
        self.live.expire()

    def step(self) -> None:
        """One step of all running requests."""
        started = time.monotonic()
        plan = self.scheduler.plan()
        result = self._runner.run(plan)
        self.scheduler.advance(plan)
        self._commit(plan, result, started)
        self.scheduler.settle(plan)
        self._step_seconds = time.monotonic() - started
        self._steps += 1

    def _commit(self, plan: StepPlan, result: StepResult, started: float) -> None:
        """Makes the step's effects real: progress first, then outputs and ends."""
        if not plan.rows:
            raise RuntimeError(f"{len(self.live)} requests live but none can run")
        now = time.monotonic()
        for request in plan.admitted:
            if not request.timings.admitted:
                request.timings.admitted = started
                if request.sampler is not None:
                    self.outbox.admitted(request.request_id)
        self._prefill_tokens += plan.prefill_tokens
        self._decode_tokens += plan.decode_tokens
        for request, items in result.scored:
            request.scored.extend(items)
            if len(request.scored) == request.prompt_length and not request.scores_sent:
                request.scores_sent = True
                self.outbox.prompt_logprobs(request.request_id, request.scored)
        for request, part in result.pooled:
            self._commit_pooled(request, part)
        for request, drawn in result.draws:
            self._commit_token(request, drawn, now)

    def _commit_token(self, request: Request, drawn: Draw, now: float) -> None:
        if drawn.error:
            self.live.finish(request, "error", error=drawn.error, error_reason="BAD_LOGITS")
            return
        if not request.timings.first_token:
            request.timings.first_token = now
        request.commit(drawn.token)
        if request.sampler is not None:
            request.sampler.commit(drawn.token)
        self.outbox.token(request.request_id, drawn)
        if drawn.token in request.stop_ids:
            self.live.finish(request, "stop", stop_token=drawn.token)
        elif request.outputs >= request.max_tokens:
            self.live.finish(request, "length")
        elif len(request.tokens) >= self._context_limit:
            self.live.finish(request, "context")

    def _commit_pooled(self, request: Request, part: np.ndarray) -> None:
        pooled = request.pooled
        assert pooled is not None
        pooled.total = part if pooled.total is None or not pooled.mean else pooled.total + part
        if request.written == len(request.tokens):
            self.live.finish(request, "stop", vector=_vector(pooled, len(request.tokens)))

    def _publish(self) -> None:
        """Sends the step's outputs, then the gauges."""
        outputs = self.outbox.flush()
        if outputs is not None:
            self._endpoint.send(outputs)
        now = time.monotonic()
        if now - self._resident[0] >= IDLE_SECONDS:
            self._resident = (now, resident_bytes())
        allocator = self.scheduler.tables.allocator
        self._endpoint.send(
            Gauges(
                at=time.time(),
                waiting=self.scheduler.waiting,
                running=len(self.scheduler.running),
                kv_used=allocator.used,
                kv_total=allocator.entries,
                rows_total=self.scheduler.limits.max_rows,
                steps=self._steps,
                prefill_tokens=self._prefill_tokens,
                decode_tokens=self._decode_tokens,
                step_seconds=self._step_seconds,
                tick_age=now - self._last_tick,
                rss_bytes=self._resident[1],
                fallbacks={**self._fallbacks(), "preempted": self.scheduler.preemptions},
            )
        )
        self._last_tick = now


def _vector(pooled: PooledVector, length: int) -> list[float]:
    assert pooled.total is not None
    vector = pooled.total / length if pooled.mean else pooled.total
    if pooled.normalise:
        vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
    return vector.astype(np.float32).tolist()
