"""The process's state is derived from facts, so calls in any order cannot contradict it."""

from __future__ import annotations

import threading
import time

import pytest
from antiphon_core.errors import FailedPrecondition, Unavailable
from antiphon_core.lifecycle import Lifecycle, State
from hypothesis import given
from hypothesis import strategies as st


def refusal(lifecycle: Lifecycle) -> str:
    try:
        lifecycle.require_ready()
    except Unavailable as error:
        return error.reason
    return ""


def test_the_usual_life() -> None:
    lifecycle = Lifecycle()
    seen = [(lifecycle.state, refusal(lifecycle))]
    for step in (
        lambda: lifecycle.booting("weights"),
        lifecycle.ready,
        lambda: lifecycle.degraded("voice", "missing"),
        lifecycle.asleep,
        lambda: lifecycle.recovered("voice"),
        lifecycle.awake,
        lifecycle.asleep,
        lifecycle.draining,
        lifecycle.stopped,
    ):
        step()
        seen.append((lifecycle.state, refusal(lifecycle)))
    assert seen == [
        (State.NOT_STARTED, "BOOTING"),
        (State.BOOTING, "BOOTING"),
        (State.READY, ""),
        (State.DEGRADED, ""),
        (State.ASLEEP, "ASLEEP"),
        (State.ASLEEP, "ASLEEP"),
        (State.READY, ""),
        (State.ASLEEP, "ASLEEP"),
        (State.DRAINING, "DRAINING"),
        (State.STOPPED, "DRAINING"),
    ]


def test_a_restarting_worker_takes_the_service_back_to_booting() -> None:
    lifecycle = Lifecycle()
    lifecycle.ready()
    lifecycle.booting("engine restart")
    assert (lifecycle.state, refusal(lifecycle)) == (State.BOOTING, "BOOTING")
    lifecycle.ready()
    assert lifecycle.state is State.READY


def test_the_failure_reason_tells_boot_from_service() -> None:
    in_boot, in_service = Lifecycle(), Lifecycle()
    in_boot.booting("weights")
    in_boot.failed("bad file")
    in_service.ready()
    in_service.failed("the engine gave up")
    in_service.failed("a later one")
    assert refusal(in_boot) == "BOOT_FAILED"
    assert refusal(in_service) == "NO_BACKEND"
    assert in_service.reason == "the engine gave up"
    assert not in_service.is_live


def test_a_final_drain_cannot_be_undone() -> None:
    lifecycle = Lifecycle()
    lifecycle.ready()
    lifecycle.draining()
    lifecycle.draining(final=True)
    with pytest.raises(FailedPrecondition, match="about to exit"):
        lifecycle.undrain()
    assert lifecycle.state is State.DRAINING


def test_refusals_carry_phase_elapsed_time_and_retry() -> None:
    lifecycle = Lifecycle()
    lifecycle.booting("weights")
    with pytest.raises(Unavailable, match="weights") as caught:
        lifecycle.require_ready()
    assert caught.value.metadata["phase"] == "weights"
    assert caught.value.retry_after is not None


@given(
    steps=st.lists(
        st.sampled_from(["booting", "ready", "failed", "draining", "undrain", "stopped"]),
        max_size=12,
    )
)
def test_nothing_undoes_a_stop_or_a_failure(steps: list[str]) -> None:
    lifecycle = Lifecycle()
    actions = {
        "booting": lambda: lifecycle.booting("weights"),
        "failed": lambda: lifecycle.failed("reason"),
    }
    for step in steps:
        actions.get(step, lambda name=step: getattr(lifecycle, name)())()
    if "stopped" in steps:
        assert lifecycle.state is State.STOPPED
    elif "failed" in steps:
        assert lifecycle.state is State.FAILED
    draining = [step for step in steps if step in ("draining", "undrain")][-1:] == ["draining"]
    if draining:
        assert not lifecycle.is_ready
    assert lifecycle.is_ready == (refusal(lifecycle) == "")


def test_phases_add_up_to_the_boot_time() -> None:
    lifecycle = Lifecycle()
    started = time.monotonic()
    for phase in ("config", "weights", "warm-up"):
        lifecycle.booting(phase)
        time.sleep(0.02)
        lifecycle.booting(phase, 0.5)
        time.sleep(0.02)
    lifecycle.ready()
    took = time.monotonic() - started
    phases = lifecycle.snapshot().phases
    assert [phase.name for phase in phases] == ["config", "weights", "warm-up"]
    assert 0.12 <= sum(phase.duration for phase in phases) <= took


def test_progress_is_a_new_phase_or_a_new_fraction() -> None:
    lifecycle = Lifecycle()
    lifecycle.booting("weights", 0.1)
    time.sleep(0.05)
    lifecycle.booting("weights", 0.1)
    assert lifecycle.seconds_without_progress >= 0.05
    stalled = lifecycle.seconds_without_progress
    lifecycle.booting("weights", 0.2)
    assert lifecycle.seconds_without_progress < stalled


def test_subscribers_see_each_change_once_and_can_leave() -> None:
    lifecycle = Lifecycle()
    seen: list[State] = []
    leave = lifecycle.subscribe(lambda snapshot: seen.append(snapshot.state))
    lifecycle.ready()
    lifecycle.degraded("voice", "missing")
    lifecycle.degraded("voice", "missing")
    lifecycle.recovered("other")
    leave()
    lifecycle.draining()
    assert seen == [State.READY, State.DEGRADED]


def test_changes_from_threads_are_all_counted() -> None:
    lifecycle = Lifecycle()

    def change(name: str) -> None:
        for number in range(100):
            lifecycle.degraded(name, str(number))

    threads = [threading.Thread(target=change, args=(str(index),)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    snapshot = lifecycle.snapshot()
    assert snapshot.sequence == 800
    assert snapshot.degraded == {str(index): "99" for index in range(8)}
