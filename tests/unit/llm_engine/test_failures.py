"""Faults at every stage of a step and of every kind: nobody waits for ever, nothing leaks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from antiphon_llm.engine import cpu_runner
from antiphon_llm.engine.door import DRAINING, MEMORY_PRESSURE, Door
from antiphon_llm.engine.failures import FailureKind, MemoryExhausted, classify
from antiphon_llm.engine.plan import StepPlan
from antiphon_llm.engine.pressure import MemoryPressure
from antiphon_llm.kvcache.allocator import PoolExhausted
from antiphon_llm.messages import Embedding, EmbedSubmit, Fault, Gauges, Shutdown
from structlog.testing import capture_logs

Reference = Callable[[Sequence[int], int], list[int]]

FAULTS: dict[str, Callable[[], Exception]] = {
    "exhausted": lambda: MemoryExhausted("nothing left"),
    "poisoned": lambda: RuntimeError("CUDA error: an illegal memory access was encountered"),
    "memory": lambda: MemoryError("no memory"),
    "pool": lambda: PoolExhausted("3 KV entries asked for, 2 free"),
    "infrastructure": lambda: OSError(5, "input/output error"),
    "request": lambda: ValueError("this cannot be done"),
}
STAGES = ("schedule", "build", "run", "sample", "commit")


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    """Keeps what is logged off the console, which would print every tensor of a traceback."""
    with capture_logs() as captured:
        yield captured


class Plant:
    """Raises ``error`` in place of some calls of a function, by their number."""

    def __init__(
        self, function: Callable[..., Any], error: Exception, calls: Sequence[int]
    ) -> None:
        self._function = function
        self._error = error
        self._calls = calls
        self.count = 0

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.count += 1
        if self.count in self._calls:
            raise self._error()
        return self._function(*args, **named)


def plant(
    engine: Any,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    error: Callable[[], Exception],
    calls: Sequence[int],
) -> Plant:
    owner, name = {
        "schedule": (engine.scheduler, "plan"),
        "build": (engine.builder, "build"),
        "run": (engine.model, "forward"),
        "sample": (cpu_runner, "draw_windows"),
        "commit": (engine.loop.outbox, "token"),
    }[stage]
    planted = Plant(getattr(owner, name), error, calls)
    monkeypatch.setattr(owner, name, planted)
    return planted


def serve(engine: Any) -> BaseException | None:
    """Runs the loop until it is idle; returns what it ended with."""

    def idle() -> None:
        if not engine.endpoint.inbox:
            engine.send(Shutdown())

    engine.endpoint.before_wait = idle
    raised = None
    try:
        engine.loop.run()
    except Exception as error:
        raised = error
    engine.collect()
    return raised


def prompts(count: int) -> dict[str, list[int]]:
    chance = random.Random(3)
    return {
        f"r{n}": [chance.randrange(60) for _ in range(chance.randrange(1, 20))]
        for n in range(count)
    }


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("stage", STAGES)
def test_one_fault(
    engine_type,
    greedy_reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    kind: str,
    depth: int,
) -> None:
    engine = engine_type(overlap_depth=depth, prefix_cache=1)
    requests = prompts(8)
    for name, prompt in requests.items():
        engine.submit(name, prompt)
    planted = plant(engine, monkeypatch, stage, FAULTS[kind], [4])
    raised = serve(engine)
    assert planted.count >= 4
    assert sorted(engine.finished) == sorted(requests)
    engine.scheduler.check_integrity()
    for name, tokens in engine.outputs.items():
        assert tokens == greedy_reference(requests[name], 8)[: len(tokens)]
    ended = {f.error_reason for f in engine.finished.values() if f.reason == "error"}
    if kind in ("exhausted", "poisoned") or (stage, kind) == ("schedule", "request"):
        assert raised is not None and ended == {"WORKER_DIED"}
        assert isinstance(engine.other[-1], Fault)
        return
    assert raised is None
    assert engine.allocator.used == engine.scheduler.holdings.cached
    failed = {n for n, finish in engine.finished.items() if finish.reason == "error"}
    if stage == "commit":
        assert len(failed) == 1  # The row whose output could not be told.
    elif (stage, kind) == ("sample", "request"):
        assert not failed  # Drawn again row by row.
        assert engine.runner.fallbacks == {"draw: row by row": 1}
    elif kind in ("memory", "pool"):
        assert not failed  # Run again.
    else:
        expected = {"infrastructure": "WORKER_DIED", "request": "INTERNAL"}[kind]
        assert ended == ({expected} if stage != "schedule" else set())
        assert len(failed) < len(requests)


def test_a_step_that_always_fails_ends_the_process(engine_type, monkeypatch) -> None:
    engine = engine_type()
    for name, prompt in prompts(30).items():
        engine.submit(name, prompt)
    plant(engine, monkeypatch, "run", FAULTS["request"], range(1, 1000))
    assert isinstance(serve(engine), ValueError)
    assert len(engine.finished) == 30
    engine.scheduler.check_integrity()


def test_a_plan_that_runs_nobody_ends_the_process(engine_type, monkeypatch) -> None:
    engine = engine_type()
    for name, prompt in prompts(3).items():
        engine.submit(name, prompt)
    monkeypatch.setattr(engine.scheduler, "plan", StepPlan)
    assert isinstance(serve(engine), RuntimeError)
    assert {finish.error_reason for finish in engine.finished.values()} == {"WORKER_DIED"}
    assert len(engine.finished) == 3


def test_nobody_hangs_where_even_the_scheduler_is_broken(engine_type, monkeypatch) -> None:
    engine = engine_type()
    for name, prompt in prompts(6).items():
        engine.submit(name, prompt)
    engine.send(EmbedSubmit("e", [1, 2, 3], "mean"))
    plant(engine, monkeypatch, "schedule", FAULTS["request"], [3])
    monkeypatch.setattr(engine.scheduler, "remove", lambda request, publish: _raise(KeyError("x")))
    assert isinstance(serve(engine), ValueError)
    assert {finish.error_reason for finish in engine.finished.values()} == {"WORKER_DIED"}
    assert sorted(engine.finished) == [f"r{n}" for n in range(6)]
    assert [m.error_reason for m in engine.other if isinstance(m, Embedding)] == ["WORKER_DIED"]
    assert isinstance(engine.other[-1], Fault)


@pytest.mark.parametrize("depth", [0, 1])
def test_random_faults_among_random_traffic(
    engine_type, greedy_reference: Reference, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    chance = random.Random(8)
    engine = engine_type(entries=24, overlap_depth=depth, prefix_cache=1)
    harmless = [FAULTS[kind] for kind in ("memory", "pool", "infrastructure", "request")]
    for stage in ("build", "run", "sample", "commit"):
        calls = [n for n in range(1, 9000) if chance.random() < 0.02]
        plant(engine, monkeypatch, stage, chance.choice(harmless), calls)
    requests = prompts(150)
    waiting = list(requests.items())
    while waiting:
        open_now = engine.loop.door.closed() is None and engine.scheduler.refusal(True) is None
        for name, prompt in waiting[:2] if open_now and engine.scheduler.waiting < 8 else []:
            engine.submit(name, prompt)
            waiting.remove((name, prompt))
        engine.step()
        engine.loop.pressure.idle() if not engine.loop.busy else None
    engine.run()
    assert sorted(engine.finished) == sorted(requests)
    for name, finish in engine.finished.items():
        if finish.reason == "length":
            assert engine.outputs[name] == greedy_reference(requests[name], 8)
    assert engine.allocator.used == engine.scheduler.holdings.cached
    reasons = Counter((f.reason, f.error_reason) for f in engine.finished.values())
    assert reasons["length", ""] > 75, reasons


class TestMemoryLadder:
    def test_narrows_until_a_step_fits(self, engine_type, greedy_reference: Reference) -> None:
        engine = engine_type(max_rows=4, step_tokens=32, prefill_chunk=16)
        forward = engine.model.forward
        widest = []

        def short_of_memory(ids, *rest, **named):
            if len(ids) > 5:
                raise MemoryError("no memory")
            widest.append(len(ids))
            return forward(ids, *rest, **named)

        engine.model.forward = short_of_memory
        requests = prompts(6)
        for name, prompt in requests.items():
            engine.submit(name, prompt)
        assert serve(engine) is None
        assert {f.reason for f in engine.finished.values()} == {"length"}
        assert all(engine.outputs[n] == greedy_reference(p, 8) for n, p in requests.items())
        assert engine.loop.pressure.shortages > 0
        assert max(widest) <= 5
        assert engine.scheduler.chunk == 16 and engine.scheduler.row_limit == 4  # Idle again.

    @pytest.mark.parametrize(
        ("affordable", "chunk", "rows"),
        [(None, 32, 4), (128, 32, 4), (127, 16, 2), (31, 8, 1), (7, 4, 1), (0, 4, 1)],
    )
    def test_narrows_at_once_to_what_the_memory_holds(
        self, engine_type, affordable: int | None, chunk: int, rows: int
    ) -> None:
        engine = engine_type(max_rows=8, step_tokens=128, prefill_chunk=64, entry_tokens=4)
        pressure = MemoryPressure(engine.scheduler, engine.loop.door, lambda: affordable)
        assert pressure.shortage()
        assert (engine.scheduler.chunk, engine.scheduler.row_limit) == (chunk, rows)

    def test_shuts_the_door_drains_and_reopens_when_idle(self, engine_type) -> None:
        engine = engine_type(max_rows=2, prefill_chunk=4)
        forward = engine.model.forward
        engine.model.forward = lambda ids, *rest, **named: (
            _raise(MemoryError("no memory")) if (ids == 50).any() else forward(ids, *rest, **named)
        )
        engine.submit("large", [50] * 9)
        engine.submit("small", [1, 2, 3], max_tokens=3)
        while not engine.loop.pressure.closed:
            engine.step()
        engine.submit("late", [1, 2])
        engine.loop.take_messages()
        engine.run()
        assert engine.finished["large"].error_reason == "MEMORY_PRESSURE"
        assert engine.finished["late"].error_reason == "MEMORY_PRESSURE"
        assert engine.finished["late"].retry_after > 0
        assert (engine.finished["late"].limit, engine.finished["late"].observed) == (0, 1)
        assert engine.finished["small"].reason == "length"
        assert engine.loop.door.closed() is MEMORY_PRESSURE
        assert serve(engine) is None  # Idle: the door opens.
        gauges = [m for m in engine.other if isinstance(m, Gauges)]
        assert gauges[0].door == ""
        assert gauges[0].counters["memory: shortages"] > 1

    def test_short_again_behind_the_shut_door_is_the_end(self, engine_type) -> None:
        engine = engine_type(max_rows=2, prefill_chunk=4)
        engine.model.forward = lambda *_, **__: _raise(MemoryError("no memory"))
        for n in range(5):
            engine.submit(f"r{n}", [1, 2, 3])
        raised = serve(engine)
        assert isinstance(raised, MemoryExhausted)
        assert len(engine.finished) == 5
        engine.scheduler.check_integrity()

    def test_widens_after_many_good_steps(self, engine_type) -> None:
        engine = engine_type(context_limit=200, entries=210)
        forward = Plant(engine.model.forward, FAULTS["memory"], [3])
        engine.model.forward = forward
        for n in range(4):
            engine.submit(f"r{n}", [1, 2, 3], max_tokens=150)
        narrow = 0
        while not (engine.loop.pressure.level == 0 and forward.count > 3):
            engine.step()
            narrow += engine.loop.pressure.level
        assert 60 < narrow < 140
        engine.run()
        assert {f.reason for f in engine.finished.values()} == {"length"}

    def test_a_pool_s_denial_is_not_a_shortage(self, engine_type, monkeypatch) -> None:
        engine = engine_type()
        engine.submit("a", [1, 2, 3])
        plant(engine, monkeypatch, "schedule", FAULTS["pool"], [2, 4])
        assert serve(engine) is None
        assert engine.loop.pressure.shortages == 0
        assert engine.loop.pressure.denials == {"kv": 2}


class TestClassifier:
    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "OUT_OF_MEMORY"),
            (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
             "OUT_OF_MEMORY"),
            (RuntimeError("CUDA error: device-side assert triggered"), "POISONED"),
            (RuntimeError("NCCL error in: ProcessGroupNCCL.cpp"), "INFRASTRUCTURE"),
            (TimeoutError("peer"), "INFRASTRUCTURE"),
            (RuntimeError("shape mismatch"), "REQUEST"),
            (KeyError("out of memory"), "REQUEST"),
        ],
    )  # fmt: skip
    def test_kinds(self, error: Exception, kind: str) -> None:
        assert classify(error) is FailureKind[kind]

    def test_the_worst_of_the_causes_counts(self) -> None:
        try:
            try:
                raise MemoryError("no memory")
            except MemoryError as cause:
                raise ValueError("the step failed") from cause
        except ValueError as error:
            assert classify(error) is FailureKind.OUT_OF_MEMORY


class TestDoor:
    def test_reasons_are_independent_and_draining_comes_first(self) -> None:
        door = Door()
        door.shut(MEMORY_PRESSURE)
        door.shut(DRAINING)
        assert door.closed() is DRAINING
        door.open(DRAINING)
        assert door.closed() is MEMORY_PRESSURE

    def test_a_fault_heals_by_success_or_time(self) -> None:
        now = [0.0]
        door = Door(clock=lambda: now[0])
        door.fault(OSError("disk"))
        closed = door.closed()
        assert closed is not None and closed.reason == "NO_BACKEND" and "disk" in closed.message
        door.healed()
        assert door.closed() is None
        door.fault(OSError("disk"))
        now[0] = 60.0
        assert door.closed() is None


def _raise(error: Exception) -> None:
    raise error
