"""A drafter that fails costs speed; one that keeps failing ends the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from antiphon_llm.engine import cpu_runner
from antiphon_llm.messages import Fault, Shutdown
from antiphon_llm.speculation.breaker import Breaker, DrafterBroken
from antiphon_llm.speculation.drafter import Proposal

from .drafters import Coin, Oracle

PROMPTS = {f"r{n}": [n, 3 * n + 1, 7, n] for n in range(6)}
OUTPUT = 24


@pytest.fixture
def answers(greedy_reference) -> dict[str, list[int]]:
    return {name: greedy_reference(prompt, OUTPUT) for name, prompt in PROMPTS.items()}


def serve(engine: Any) -> BaseException | None:
    """Runs the loop until it is idle; returns what it ended with."""

    def idle() -> None:
        if not engine.endpoint.inbox:
            engine.send(Shutdown())

    engine.endpoint.before_wait = idle
    for name, prompt in PROMPTS.items():
        engine.submit(name, prompt, max_tokens=OUTPUT)
    raised = None
    try:
        engine.loop.run()
    except Exception as error:
        raised = error
    engine.collect()
    assert sorted(engine.finished) == sorted(PROMPTS)
    return raised


class Failing(Oracle):
    """Fails at some of its calls."""

    def __init__(
        self,
        answers: dict[str, list[int]],
        *,
        drafts: range = range(0),
        observes: range = range(0),
        error: Callable[[], Exception] = lambda: ValueError("planted"),
    ) -> None:
        super().__init__(answers)
        self._fail_at = {"draft": drafts, "observe": observes}
        self._calls = {"draft": 0, "observe": 0}
        self._error = error

    def draft(self, requests, depth):
        self._count("draft")
        return super().draft(requests, depth)

    def observe(self, plan, hidden, taps, result) -> None:
        if plan.draft_depth:
            self._count("observe")

    def _count(self, call: str) -> None:
        self._calls[call] += 1
        if self._calls[call] in self._fail_at[call]:
            raise self._error()


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("call", ["drafts", "observes"])
def test_a_failure_costs_its_step_the_drafts(engine_type, answers, call: str, overlap: int) -> None:
    drafter = Failing(answers, **{call: range(2, 4)})
    engine = engine_type(drafter=drafter, draft_depth=3, overlap_depth=overlap)
    assert serve(engine) is None
    assert engine.outputs == answers
    counters = engine.loop.speculation.counters()
    assert counters["draft: failures"] == 2 and counters["draft: degraded"] == 0
    assert counters.get("draft: none, drafter failed", 0) == (2 if call == "drafts" else 0)
    assert counters["draft: accepted 3"] > 0


def test_it_is_degraded_until_a_step_succeeds(engine_type, answers) -> None:
    engine = engine_type(drafter=Failing(answers, drafts=range(1, 3)), draft_depth=3)
    engine.submit("r1", PROMPTS["r1"], max_tokens=OUTPUT)
    degraded = []
    while "r1" not in engine.finished:
        engine.step()
        degraded.append(engine.loop._counters().get("draft: degraded", 0))
    # The prompt, two failures, and the step whose success is known.
    assert degraded[:5] == [0, 1, 1, 0, 0]


@pytest.mark.parametrize("call", ["drafts", "observes"])
def test_five_failures_in_a_row_end_the_process(engine_type, answers, call: str) -> None:
    engine = engine_type(drafter=Failing(answers, **{call: range(2, 100)}), draft_depth=2)
    raised = serve(engine)
    assert isinstance(raised, DrafterBroken) and "5 times in a row: planted" in str(raised)
    assert {finish.error_reason for finish in engine.finished.values()} == {"WORKER_DIED"}
    assert isinstance(engine.other[-1], Fault)
    for name, tokens in engine.outputs.items():
        assert tokens == answers[name][: len(tokens)]


def test_empty_proposals_are_successes(engine_type, answers) -> None:
    class Rarely(Failing):
        def _propose(self, request, depth):
            return []

    engine = engine_type(drafter=Rarely(answers, drafts=range(1, 100, 2)), draft_depth=2)
    assert serve(engine) is None
    assert engine.loop.speculation.counters()["draft: failures"] >= 10


def test_a_release_that_fails_keeps_no_request_from_ending(engine_type, answers) -> None:
    class Clinging(Oracle):
        def release(self, request):
            raise KeyError(request.request_id)

    engine = engine_type(drafter=Clinging(answers), draft_depth=2)
    assert serve(engine) is None
    assert engine.outputs == answers
    assert engine.loop.speculation.counters()["draft: release failures"] == len(PROMPTS)


def test_without_a_limit_it_goes_on(engine_type, answers) -> None:
    engine = engine_type(drafter=Failing(answers, drafts=range(2, 100)), draft_depth=2)
    engine.loop.speculation._breaker = Breaker(-1)
    assert serve(engine) is None
    assert engine.outputs == answers


def test_a_lost_device_ends_the_process_at_once(engine_type, answers) -> None:
    drafter = Failing(
        answers, drafts=range(2, 3),
        error=lambda: RuntimeError("CUDA error: an illegal memory access was encountered"),
    )  # fmt: skip
    engine = engine_type(drafter=drafter, draft_depth=2)
    assert "illegal memory access" in str(serve(engine))
    assert engine.loop.speculation.counters().get("draft: failures", 0) == 0


def test_a_proposal_of_another_shape_is_a_failure(engine_type, answers) -> None:
    class Wrong(Oracle):
        def draft(self, requests, depth):
            right = super().draft(requests, depth).tokens
            return Proposal(right[1:] if len(right) > 1 else [[1] * (depth + 1)])

    engine = engine_type(drafter=Wrong(answers), draft_depth=2)
    engine.loop.speculation._breaker = Breaker(-1)
    assert serve(engine) is None
    assert engine.outputs == answers
    assert engine.loop.speculation.telemetry.proposed == 0


def test_shortages_of_memory_have_a_count_of_their_own() -> None:
    breaker = Breaker(2)
    for memory in (False, True):
        breaker.failed(ValueError("one"), memory=memory)
    assert breaker.degraded and breaker.total == 2
    breaker.succeeded()
    assert not breaker.degraded
    breaker.failed(ValueError("one"), memory=True)
    with pytest.raises(DrafterBroken):
        breaker.failed(ValueError("two"), memory=True)


FAULTS: dict[str, Callable[[], Exception]] = {
    "memory": lambda: torch.OutOfMemoryError("planted"),
    "infrastructure": lambda: OSError("planted"),
    "request": lambda: ValueError("planted"),
}
STAGES = ("build", "run", "sample", "commit")


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("stage", STAGES)
def test_a_step_with_drafts_that_fails(
    engine_type, answers, monkeypatch: pytest.MonkeyPatch, stage: str, kind: str, overlap: int
) -> None:
    drafter = Coin(answers)
    engine = engine_type(
        drafter=drafter, draft_depth=4, overlap_depth=overlap, prefix_cache=1, step_tokens=48
    )
    owner, name = {
        "build": (engine.builder, "build"),
        "run": (engine.model, "forward"),
        "sample": (cpu_runner, "draw_windows"),
        "commit": (engine.loop.outbox, "token"),
    }[stage]
    original, calls = getattr(owner, name), 0

    def planted(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == (9 if stage == "commit" else 4):
            raise FAULTS[kind]()
        return original(*args, **named)

    monkeypatch.setattr(owner, name, planted)
    assert serve(engine) is None
    engine.scheduler.check_integrity()
    assert engine.allocator.used == engine.scheduler.holdings.cached
    assert sorted(drafter.released) == sorted(PROMPTS)
    for name, tokens in engine.outputs.items():
        assert tokens == answers[name][: len(tokens)]
        if engine.finished[name].reason != "error":
            assert tokens == answers[name]
    if kind == "memory" and stage != "commit":
        assert engine.outputs == answers  # Run again.
