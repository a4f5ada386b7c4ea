"""The step loop: take messages, plan, launch, collect, commit, tell the front."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from antiphon_core.ipc.endpoint import Endpoint
from antiphon_core.logs import get_logger
from antiphon_core.memory import resident_bytes

from antiphon_llm.adapter_messages import LoadAdapter, UnloadAdapter
from antiphon_llm.messages import (
    AnswerNow,
    Cancel,
    Done,
    EmbedSubmit,
    Fault,
    FlushCache,
    Gauges,
    Shutdown,
    Sleep,
    StopNow,
    Submit,
    Wake,
)

from .commit import StepCommit
from .door import DRAINING, Door
from .intake import Intake
from .live import LiveRequests
from .orders import Orders
from .outbox import Outbox
from .plan import StepPlan
from .pressure import MemoryPressure
from .recovery import Recovery
from .runner import InFlight, Runner
from .scheduler import Scheduler
from .sleep import Sleeper
from .speculating import Speculation
from .teardown import Owners

_log = get_logger(__name__)

IDLE_SECONDS = 1.0
"""Longest silence towards the front."""
COMPILE_SECONDS = 0.005
"""Between looks at what other threads compile or read, while there is nothing to step for."""


class EngineLoop:
    """Runs on the engine's main thread until a Shutdown arrives.

    Up to ``overlap_depth`` steps run while the loop commits the one before: their tokens are
    known to the runner, and to the host one step later.
    """

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        scheduler: Scheduler,
        runner: Runner[Any],
        live: LiveRequests,
        intake: Intake,
        outbox: Outbox,
        door: Door,
        context_limit: int,
        overlap_depth: int,
        speculation: Speculation | None = None,
        fallbacks: Callable[[], dict[str, int]] = dict,
        counters: Callable[[], dict[str, int]] = dict,
        affordable_tokens: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.live = live
        self.intake = intake
        self.outbox = outbox
        self.door = door
        self.orders = Orders(live, intake.end_ids)
        self.owners = Owners()
        self.sleeper = Sleeper(scheduler, runner, door, self.answer)
        self.pressure = MemoryPressure(scheduler, door, affordable_tokens)
        self.recovery = Recovery(scheduler, live, self.pressure, door)
        self.overlap_depth = overlap_depth
        self.speculation = speculation
        self._commit = StepCommit(scheduler, live, outbox, context_limit=context_limit)
        self._endpoint = endpoint
        self._fallbacks = fallbacks
        self._runner_counters = counters
        self._flights: deque[InFlight] = deque()
        self._finished: InFlight | None = None
        self._at: tuple[str, StepPlan | None] = ("schedule", None)
        """Stage and plan that the loop works on, for what fails there."""
        self._stopping = False
        self._steps = self._clean_steps = 0
        self._step_seconds = self._committed = 0.0
        self._last_tick = time.monotonic()
        self._resident = (0.0, 0)

    @property
    def busy(self) -> bool:
        """Whether there is anything to step for: a request, or a step to collect."""
        return bool(self.live) or bool(self._flights)

    def stop(self) -> None:
        """Makes ``run`` end as a Shutdown does; safe in a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Steps while there is work and sleeps while there is none; returns at Shutdown.

        Every request has its terminal when this returns or raises. What escapes a step goes to
        the front as a Fault, and is raised on for the process to exit with.
        """
        try:
            while not self._stopping:
                if not self.busy and self.intake.pending:
                    self._send_outputs()
                    self._endpoint.wait(COMPILE_SECONDS)
                elif not self.busy:
                    self.pressure.idle()
                    self._publish()
                    if not self._endpoint.wait(IDLE_SECONDS):
                        self._collect_garbage()
                self.take_messages()
                if self.busy and not self._stopping:
                    self.step()
                    self._publish()
            self.door.shut(DRAINING)
            self.intake.finish_all("the engine stops", "DRAINING")
            self.live.finish_all("the engine stops", "DRAINING")
            self._settle_flights()
            self._publish()
        except Exception as defect:
            _log.exception("engine_failed", live=len(self.live))
            self.intake.finish_all(f"the engine failed: {defect}", "WORKER_DIED")
            self.live.finish_all(f"the engine failed: {defect}", "WORKER_DIED")
            self._send_outputs()
            self._endpoint.send(Fault(f"{type(defect).__name__}: {defect}", "INTERNAL", "serving"))
            raise

    def _collect_garbage(self) -> None:
        """A full collection for the steps since the last; between them it would be felt."""
        if self._steps != self._clean_steps:
            self._clean_steps = self._steps
            gc.collect()

    def take_messages(self) -> None:
        """Applies everything that the front has sent, then deadlines, then a sleep asked for."""
        for message in self._endpoint.drain():
            if isinstance(message, Submit | EmbedSubmit):
                self.intake.submit(message)
            elif isinstance(message, Cancel):
                self.intake.cancel(message)
            elif isinstance(message, StopNow):
                self.answer(self.orders.stop(message))
            elif isinstance(message, AnswerNow):
                self.answer(self.orders.answer(message))
            elif isinstance(message, FlushCache):
                entries = self.scheduler.flush(message.tenant)
                self.answer(Done(message.request_id, entries=entries))
            elif isinstance(message, Sleep):
                self.sleeper.sleep(message)
            elif isinstance(message, Wake):
                self.sleeper.wake(message)
            elif isinstance(message, LoadAdapter | UnloadAdapter):
                self._take_adapter(message)
            elif isinstance(message, Shutdown):
                self._stopping = True
            else:
                raise TypeError(f"unexpected message {type(message).__name__}")
        if not self._flights:
            self._change_adapters()
        self.intake.advance()
        self.live.expire()
        self.sleeper.advance(self.busy or self.intake.compiling > 0)

    def step(self) -> None:
        """Starts the next step, then makes real what the steps that are due have computed."""
        started = time.monotonic()
        try:
            self._change_adapters()
            self._propose()
            following = self._launch_next(started)
            self._finish_oldest()
            while self._due(following):
                self._collect_oldest()
        except Exception as error:
            self.recovery.failed(error, *self._at)
        self._step_seconds = time.monotonic() - started

    def _take_adapter(self, message: LoadAdapter | UnloadAdapter) -> None:
        desk = self.intake.adapters
        if desk is None:
            refusal = "this engine serves no adapters"
            self.answer(Done(message.request_id, refusal, "UNSUPPORTED_OPTION"))
        elif isinstance(message, LoadAdapter):
            desk.load(message)
        else:
            desk.unload(message)

    def _change_adapters(self) -> None:
        """Changes the adapters' tables where that is due; no step in flight may read them."""
        desk = self.intake.adapters
        if desk is None or not desk.due:
            return
        while self._flights:
            self._collect_oldest()
        desk.apply()

    def _propose(self) -> None:
        """Has the next decode rows drafted, unless they cannot be before tokens are in flight."""
        self._at = ("draft", None)
        if self.speculation is None:
            return
        if self._flights and self.speculation.expects(self.scheduler.next_decodes()):
            while self._flights:
                self._collect_oldest()
            self._at = ("draft", None)
        if not self._flights:
            self.speculation.propose(self.scheduler.next_decodes())

    def _launch_next(self, begun: float) -> StepPlan:
        """Plans a step and starts it, if there is one to start now."""
        self._at = ("schedule", None)
        plan = self.scheduler.plan()
        plan.begun = begun
        self._at = ("schedule", plan)
        if plan.rows:
            self._at = ("launch", plan)
            self._flights.append(self.runner.launch(plan))
            self.scheduler.advance(plan)
        elif not self._flights and self.live:
            raise RuntimeError(f"{len(self.live)} requests live but none can run")
        return plan

    def _collect_oldest(self) -> None:
        """Waits for the oldest step in flight and commits it."""
        flight = self._flights.popleft()
        plan = flight.plan
        self._at = ("collect", plan)
        result = self.runner.collect(flight)
        self._at = ("commit", plan)
        self._commit(plan, result)
        self.scheduler.settle(plan)
        self.recovery.succeeded()
        self._steps += 1
        self._finish_oldest()
        if self.speculation is not None:
            self._at = ("draft", None)
            now = time.monotonic()
            seconds, self._committed = now - max(self._committed, plan.begun), now
            self.speculation.took(plan, result, seconds)

    def _finish_oldest(self) -> None:
        """All before the oldest step in flight is committed: its last draws can be made."""
        if self._flights and self._flights[0] is not self._finished:
            self._finished = self._flights[0]
            self.runner.finish(self._finished)

    def _settle_flights(self) -> None:
        """Waits for the steps in flight; nobody is left to hear of their tokens."""
        while self._flights:
            self._finish_oldest()
            flight = self._flights.popleft()
            try:
                self.runner.collect(flight)
            except Exception:
                _log.exception("step_failed", stage="stopping")
            self.scheduler.settle(flight.plan, computed=False)

    def _due(self, following: StepPlan) -> bool:
        """Whether the oldest step in flight is to be collected before another is planned.

        A prompt's first token is not held back by the overlap: its step, and so all before it,
        is waited for at once. So is a step with drafts: how many tokens it yields decides what
        comes next.
        """
        if len(self._flights) > self.overlap_depth:
            return True
        if following.draft_depth:
            return bool(self._flights)
        return bool(self._flights) and (not following.rows or _completes_prompt(following))

    def _publish(self) -> None:
        """Sends the gauges, then the step's outputs: who hears of an end finds it counted."""
        self._endpoint.send(self._gauges())
        self._send_outputs()

    def answer(self, done: Done) -> None:
        """Who hears of a flush, sleep or wake finds it in the gauges."""
        self._endpoint.send(self._gauges())
        self._endpoint.send(done)

    def _send_outputs(self) -> None:
        outputs = self.outbox.flush()
        if outputs is not None:
            self._endpoint.send(outputs)

    def _gauges(self) -> Gauges:
        now = time.monotonic()
        tick_age, self._last_tick = now - self._last_tick, now
        if now - self._resident[0] >= IDLE_SECONDS:
            self._resident = (now, resident_bytes())
        allocator = self.scheduler.tables.allocator
        cached = self.scheduler.holdings.cached
        closed = self.door.closed()
        desk = self.intake.adapters
        return Gauges(
            at=time.time(),
            waiting=self.scheduler.waiting + self.intake.compiling,
            running=self.scheduler.running_count,
            kv_used=allocator.used - cached,
            kv_total=allocator.entries,
            rows_total=self.scheduler.limits.max_rows,
            steps=self._steps,
            prefill_tokens=self._commit.prefill_tokens,
            decode_tokens=self._commit.decode_tokens,
            step_seconds=self._step_seconds,
            tick_age=tick_age,
            rss_bytes=self._resident[1],
            fallbacks={**self._fallbacks(), "preempted": self.scheduler.preemptions},
            kv_cached=cached,
            cached_tokens=self.scheduler.cached_tokens,
            parked=self.scheduler.parking.count,
            door=closed.reason if closed is not None else "",
            counters=self._counters(),
            adapters=0 if desk is None else desk.loaded,
            adapter_bytes=0 if desk is None else desk.nbytes,
        )

    def _counters(self) -> dict[str, int]:
        """What went another way than usual, by name."""
        counters = {
            **self._runner_counters(),
            **self.scheduler.counters(),
            **self.intake.counters(),
            **self.recovery.failures,
            **(self.speculation.counters() if self.speculation is not None else {}),
        }
        if self.pressure.shortages:
            counters["memory: shortages"] = self.pressure.shortages
        for pool, count in self.pressure.denials.items():
            counters[f"pool denied: {pool}"] = count
        return counters


def _completes_prompt(plan: StepPlan) -> bool:
    return plan.prefill_tokens > 0 and any(
        row.start < row.request.prompt_length <= row.end for row in plan.rows
    )
