"""The front's side of the engine process: routes its messages, caches its gauges, outlives it.

Everything runs on the event loop. No probe or admission asks the engine: they read what it
last reported.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from antiphon_core.errors import AntiphonError, FailedPrecondition
from antiphon_core.ipc.worker import Worker, WorkerExit
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.logs import get_logger

from antiphon_llm.front.control import EngineControl
from antiphon_llm.front.door import report_door, require_open
from antiphon_llm.front.engine_errors import worker_died
from antiphon_llm.front.engine_metrics import EngineMetrics
from antiphon_llm.front.generation import Generation
from antiphon_llm.front.reads import PromptReads
from antiphon_llm.front.waiting import Waiting
from antiphon_llm.messages import (
    BootPhase,
    Cancel,
    Done,
    Embedding,
    Fault,
    Gauges,
    Hello,
    Sampling,
    StepOutputs,
    Submit,
)

_STALL_DEGRADED_SECONDS = 10.0
_STALL_FAILED_SECONDS = 30.0
_WATCH_SECONDS = 1.0
_PROBE_ID = "readiness"

log = get_logger("engine")

WorkerFactory = Callable[[Callable[[object], None], Callable[[WorkerExit], None]], Worker]
"""Makes the worker from ``on_message`` and ``on_exit``; its first message is Boot."""


class HelloCheck(Protocol):
    """Compares the built model with what the front knows of it."""

    def __call__(self, hello: Hello) -> None:
        """Raises AntiphonError where they contradict."""
        ...


class EngineClient:
    """Owns the engine's worker and the table of live sequences.

    Args:
        make_worker: builds the worker process, or a test's stand-in.
        lifecycle: phases during boot and restart; failed when the restart budget is spent.
        queue_limit: sequences that may wait for a row.
        check_hello: refuses an engine that does not fit the front's tokenizer.
        restore: gives an engine that was started anew what the one before had.
    """

    def __init__(
        self,
        make_worker: WorkerFactory,
        lifecycle: Lifecycle,
        *,
        queue_limit: int,
        check_hello: HelloCheck,
        restore: Callable[[], Awaitable[None]],
    ) -> None:
        self._worker = make_worker(self._on_message, self._on_exit)
        self._lifecycle = lifecycle
        self._queue_limit = queue_limit
        self._check_hello = check_hello
        self._restore = restore
        self._restoring: asyncio.Task[None] | None = None
        self._metrics = EngineMetrics()
        self.control = EngineControl(self._worker.send)
        self._sequences: dict[str, tuple[Generation, int]] = {}
        self.sequences_of: dict[Generation, list[str]] = {}
        self._waiting = Waiting()
        self.reads = PromptReads(self._worker.send, lambda: self._worker.alive, self._require_room)
        self._serial = 0
        self._service_seconds = 1.0
        self._first_ready: asyncio.Future[Hello] | None = None
        self._heard = time.monotonic()
        self._watcher: asyncio.Task[None] | None = None
        self.hello: Hello | None = None
        """Facts of the built model; None while none is up."""
        self.gauges: Gauges | None = None
        """The last report; None before the first of this engine process."""

    # Life of the engine

    async def start(self) -> Hello:
        """Starts the engine and returns when it has answered one real request.

        Raises:
            FailedPrecondition: the engine cannot boot; the message is the engine's own.
        """
        self._first_ready = asyncio.get_running_loop().create_future()
        await self._worker.start()
        self._watcher = asyncio.create_task(self._watch(), name="engine-watch")
        return await self._first_ready

    async def stop(self, grace: float = 5.0) -> None:
        """Ends the engine; live requests end with an error."""
        if self._watcher is not None:
            self._watcher.cancel()
        self._fail_all(worker_died("the service stops"))
        await self._worker.stop(grace)

    @property
    def pid(self) -> int | None:
        """Process id of the engine while it runs."""
        return self._worker.pid

    @property
    def restarts(self) -> int:
        """Restarts since the front began."""
        return self._worker.restarts

    @property
    def waiting(self) -> int:
        """Interactive sequences without a row yet."""
        return self._waiting.interactive

    @property
    def waiting_batch(self) -> int:
        """Batch sequences without a row yet."""
        return self._waiting.batch

    @property
    def running(self) -> int:
        """Sequences with a row."""
        return len(self._sequences) - self.waiting - self.waiting_batch

    @property
    def silence(self) -> float:
        """Seconds since the engine's last message."""
        return time.monotonic() - self._heard

    # Requests

    def open(self, generation: Generation) -> None:
        """Submits one sequence per choice.

        Raises:
            ResourceExhausted: the door is closed; says by which limit.
            Unavailable: no engine runs.
        """
        prepared, scope = generation.prepared, generation.prepared.scope
        self._require_room(len(generation.choices), interactive=scope.interactive)
        self._serial += 1
        names = [
            f"{scope.request_id}.{self._serial:x}.{choice.index}" for choice in generation.choices
        ]
        for choice, name in enumerate(names):
            self._worker.send(prepared.submit(name, choice))
            self._sequences[name] = (generation, choice)
            self._waiting.add(name, interactive=scope.interactive)
        self.sequences_of[generation] = names

    def end(self, generation: Generation, choices: Sequence[int]) -> None:
        """Cancels these choices in the engine; ended ones are ignored."""
        names = self.sequences_of.get(generation)
        if names is None:
            return
        for choice in choices:
            if self._forget(names[choice]) and self._worker.alive:
                self._worker.send(Cancel(request_id=names[choice]))
        if not any(name in self._sequences for name in names):
            del self.sequences_of[generation]

    def _require_room(self, count: int, *, interactive: bool) -> None:
        """Bounds what may be on its way to the engine, whose own door knows the rest."""
        rows = self.hello.max_rows if self.hello is not None else 1
        require_open(
            self.gauges.door if self.gauges is not None else "",
            count=count,
            running=len(self._sequences),
            waiting=self._waiting.before(interactive=interactive),
            queue_limit=self._queue_limit,
            service_seconds=self._service_seconds / rows,
        )

    def _forget(self, name: str) -> bool:
        self._waiting.discard(name)
        return self._sequences.pop(name, None) is not None

    def _fail_all(self, error: AntiphonError) -> None:
        generations = list(self.sequences_of)
        self._sequences.clear()
        self._waiting.clear()
        self.sequences_of.clear()
        for generation in generations:
            generation.fail(error)
            generation.wake()
        self.reads.fail_all(error)
        self.control.fail_all(error)

    # Messages

    def _on_message(self, message: object) -> None:
        self._heard = time.monotonic()
        if isinstance(message, StepOutputs):
            self._on_step(message)
        elif isinstance(message, Gauges):
            self._metrics.gauges(message, self.gauges)
            self.gauges = message
            report_door(self._lifecycle, message.door)
        elif isinstance(message, Embedding):
            self.reads.on_answer(message)
        elif isinstance(message, Done):
            self.control.on_done(message)
        elif isinstance(message, BootPhase):
            self._lifecycle.booting(message.phase, message.fraction)
        elif isinstance(message, Hello):
            self._on_hello(message)
        elif isinstance(message, Fault):
            self._on_fault(message)

    def _on_step(self, step: StepOutputs) -> None:
        touched: dict[Generation, None] = {}
        sequences = self._sequences
        for name in step.admitted:
            self._waiting.discard(name)
            found = sequences.get(name)
            if found is not None:
                found[0].on_admitted(found[1], step.cached.get(name, 0))
                touched[found[0]] = None
        for name, scores in step.prompt_logprobs.items():
            found = sequences.get(name)
            if found is not None:
                found[0].on_prompt_logprobs(scores)
                touched[found[0]] = None
        self._deliver_tokens(step, touched)
        for finish in step.finished:
            if finish.request_id == _PROBE_ID:
                self._on_probe_answer(finish.reason, finish.error)
                continue
            found = sequences.get(finish.request_id)
            if found is None:
                continue
            self._forget(finish.request_id)
            if finish.reason != "error":
                seconds = finish.prefill_seconds + finish.decode_seconds
                self._service_seconds += 0.2 * (seconds - self._service_seconds)
            found[0].on_finish(found[1], finish)
            touched[found[0]] = None
        self._metrics.step(len(step.request_ids))
        for generation in touched:
            generation.wake()

    def _deliver_tokens(self, step: StepOutputs, touched: dict[Generation, None]) -> None:
        sequences = self._sequences
        ends = {finish.request_id: finish.stop_token for finish in step.finished}
        logprobs, top = step.logprobs, step.top_logprobs
        for row, (name, token) in enumerate(zip(step.request_ids, step.token_ids, strict=True)):
            found = sequences.get(name)
            if found is None:
                continue
            found[0].on_token(
                found[1],
                token,
                logprobs[row] if logprobs else 0.0,
                top[row] if top else None,
                ends.get(name) == token,
            )
            touched[found[0]] = None

    def _on_hello(self, hello: Hello) -> None:
        try:
            self._check_hello(hello)
        except AntiphonError as error:
            self._refuse_boot(error)
            return
        log.info(
            "engine_up",
            architecture=hello.architecture,
            device=hello.device,
            dtype=hello.dtype,
            context_limit=hello.context_limit,
            kv_entries=hello.kv_entries,
            kernels=hello.kernels,
            boot_seconds=hello.boot_seconds,
        )
        self.hello = hello
        self._metrics.hello(hello)
        self._lifecycle.booting("readiness request")
        greedy = Sampling(temperature=0.0, max_tokens=1, ignore_eos=True)
        prompt = hello.eos_ids[:1] or [0]
        self._worker.send(Submit(request_id=_PROBE_ID, prompt_ids=prompt, sampling=greedy))

    def _on_probe_answer(self, reason: str, error: str) -> None:
        if reason not in ("length", "stop", "context"):
            self._refuse_boot(
                FailedPrecondition(f"the engine failed its readiness request: {error or reason}")
            )
        elif self._first_ready is not None and not self._first_ready.done():
            assert self.hello is not None
            self._first_ready.set_result(self.hello)
        else:
            log.info("engine_recovered", restarts=self.restarts)
            self._restoring = asyncio.create_task(self._recover(), name="engine-restore")

    async def _recover(self) -> None:
        await self._restore()
        self._lifecycle.ready()

    def _on_fault(self, fault: Fault) -> None:
        log.error("engine_fault", phase=fault.phase, reason=fault.reason, error=fault.message)
        if self.hello is None:
            phase = f" in phase {fault.phase}" if fault.phase else ""
            self._refuse_boot(FailedPrecondition(f"the engine cannot boot{phase}: {fault.message}"))

    def _refuse_boot(self, error: AntiphonError) -> None:
        """A boot that failed for a stated reason would fail again: no restart."""
        if self._first_ready is not None and not self._first_ready.done():
            self._first_ready.set_exception(error)
        else:
            self._lifecycle.failed(error.message)

    def _on_exit(self, exit_record: WorkerExit) -> None:
        self.hello = None
        self.gauges = None
        if self._restoring is not None:
            self._restoring.cancel()
        self._metrics.died()
        self._fail_all(worker_died(exit_record.description))
        self._lifecycle.recovered("engine")
        report_door(self._lifecycle, "")
        if exit_record.will_restart:
            self._lifecycle.booting("engine restart")
        else:
            self._refuse_boot(
                FailedPrecondition(
                    f"the engine process died ({exit_record.description}) and its restarts are "
                    "used up"
                )
            )

    async def _watch(self) -> None:
        """Notices an engine that lives but does not move although it has work."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if self.hello is None:
                continue
            silence = self.silence
            self._metrics.tick_age(silence)
            idle = not self._sequences and not self.reads
            if idle or silence < _STALL_DEGRADED_SECONDS:
                self._lifecycle.recovered("engine")
                continue
            self._lifecycle.degraded("engine", "the step loop does not move")
            if silence > _STALL_FAILED_SECONDS:
                self._lifecycle.failed(f"the engine made no step for {silence:.0f} s")
