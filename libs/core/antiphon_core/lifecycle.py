"""The state of one process: written by boot code, read by probes and by every call's admission.

The state is derived from facts (phase, degradations, draining, failure) instead of being
set, so that a late ``ready()`` cannot undo a drain or a failure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from antiphon_core.boot_id import BOOT_ID
from antiphon_core.errors import FailedPrecondition, Unavailable

_BOOT_RETRY_SECONDS = 1.0


class State(StrEnum):
    """NOT_STARTED -> BOOTING -> READY <-> DEGRADED -> DRAINING -> STOPPED; FAILED from any.

    READY <-> ASLEEP where a service can give its memory back.
    """

    NOT_STARTED = "not_started"
    BOOTING = "booting"
    READY = "ready"
    DEGRADED = "degraded"
    ASLEEP = "asleep"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class PhaseRecord:
    """One boot phase: start in seconds since the process's lifecycle began, and duration."""

    name: str
    start: float
    duration: float


@dataclass(frozen=True)
class LifecycleSnapshot:
    """All facts at one instant."""

    state: State
    reason: str
    phase: str
    fraction: float
    elapsed: float
    """Seconds since the lifecycle was created."""
    boot_id: str
    degraded: dict[str, str]
    """Reason by component."""
    phases: tuple[PhaseRecord, ...]
    booted: bool
    """Whether boot had ended; tells a failure in service from a failed boot."""
    sequence: int
    """Incremented at each change."""


class Lifecycle:
    """Thread-safe registry of the process's state.

    Callbacks of ``subscribe`` run in the thread that made the change, after it, outside the
    lock; they must be short and must not raise.
    """

    def __init__(self, boot_id: str = BOOT_ID) -> None:
        self.boot_id = boot_id
        self._lock = threading.Lock()
        self._created = time.monotonic()
        self._base = State.NOT_STARTED
        self._phase = ""
        self._phase_started = self._created
        self._fraction = 0.0
        self._progressed = self._created
        self._phases: list[PhaseRecord] = []
        self._degraded: dict[str, str] = {}
        self._asleep = False
        self._draining = False
        self._final = False
        self._refuse_at = 0.0
        self._failure = ""
        self._sequence = 0
        self._subscribers: list[Callable[[LifecycleSnapshot], None]] = []

    @property
    def state(self) -> State:
        """The present state."""
        if self._base is State.STOPPED:
            return State.STOPPED
        if self._failure:
            return State.FAILED
        if self._draining:
            return State.DRAINING
        if self._base is State.READY and self._asleep:
            return State.ASLEEP
        if self._base is State.READY and self._degraded:
            return State.DEGRADED
        return self._base

    @property
    def is_ready(self) -> bool:
        """Whether balancers should send work here."""
        return self.state in (State.READY, State.DEGRADED)

    @property
    def is_live(self) -> bool:
        """Whether the process is worth keeping: holds through boot, drain and sleep."""
        return self.state not in (State.FAILED, State.STOPPED)

    @property
    def reason(self) -> str:
        """Why the process is not simply ready: BOOTING, DRAINING, ASLEEP, the failure or
        degradations."""
        state = self.state
        if state is State.FAILED:
            return self._failure
        if state is State.DEGRADED:
            return "; ".join(f"{key}: {text}" for key, text in sorted(self._degraded.items()))
        return "" if state is State.READY else state.name

    @property
    def phase(self) -> str:
        """The boot phase; stays at the last one after boot."""
        return self._phase

    @property
    def seconds_without_progress(self) -> float:
        """Seconds since the last call of ``booting`` (a new phase or a new fraction)."""
        return time.monotonic() - self._progressed

    def booting(self, phase: str, fraction: float = 0.0) -> None:
        """Enters a phase, or reports progress inside it (fraction 0 to 1)."""
        with self._lock:
            now = time.monotonic()
            progressed = phase != self._phase or fraction != self._fraction
            changed = phase != self._phase or self._base is not State.BOOTING
            if changed:
                self._close_phase(now)
                self._phase_started = now
                self._base = State.BOOTING if self._base is not State.STOPPED else self._base
            if progressed or changed:
                self._progressed = now
            self._phase = phase
            self._fraction = fraction
        if progressed or changed:
            self._changed()

    def ready(self) -> None:
        """Boot is over; closes the last phase. Does not undo a drain or a failure."""
        with self._lock:
            self._close_phase(time.monotonic())
            if self._base is not State.STOPPED:
                self._base = State.READY
            self._fraction = 1.0
        self._changed()

    def degraded(self, component: str, reason: str) -> None:
        """A part does not work; the process still serves."""
        with self._lock:
            if self._degraded.get(component) == reason:
                return
            self._degraded[component] = reason
        self._changed()

    def recovered(self, component: str) -> None:
        """The part works again."""
        with self._lock:
            if self._degraded.pop(component, None) is None:
                return
        self._changed()

    def asleep(self) -> None:
        """Not ready, and new work is refused, until ``awake``."""
        self._set_asleep(True)

    def awake(self) -> None:
        """Takes work again after ``asleep``."""
        self._set_asleep(False)

    def failed(self, reason: str) -> None:
        """The process cannot work any more; the first reason stays."""
        with self._lock:
            if self._failure:
                return
            self._failure = reason
        self._changed()

    def draining(self, refuse_after: float = 0.0, *, final: bool = False) -> None:
        """Not ready from now on; new work is refused after so many seconds.

        The delay gives balancers time to notice, so that no caller meets a refusal. A final
        drain ends in an exit and cannot be undone.
        """
        with self._lock:
            self._final = self._final or final
            if self._draining:
                return
            self._draining = True
            self._refuse_at = time.monotonic() + refuse_after
        self._changed()

    def undrain(self) -> None:
        """Takes work again.

        Raises:
            FailedPrecondition: the process is about to exit.
        """
        with self._lock:
            if self._final:
                raise FailedPrecondition("the process is about to exit and takes no more work")
            if not self._draining:
                return
            self._draining = False
        self._changed()

    def stopped(self) -> None:
        """The last state."""
        with self._lock:
            self._base = State.STOPPED
        self._changed()

    def require_ready(self) -> None:
        """Admits new work.

        Raises:
            Unavailable: BOOTING, DRAINING, ASLEEP, BOOT_FAILED, or NO_BACKEND after a failure
                in service; the phase is in metadata.
        """
        state = self.state
        if state in (State.READY, State.DEGRADED):
            return
        if state is State.DRAINING:
            if self._base is State.READY and time.monotonic() < self._refuse_at:
                return
            raise Unavailable(
                "the service is draining and takes no new work",
                reason="DRAINING",
                retry_after=_BOOT_RETRY_SECONDS,
            )
        if state is State.STOPPED:
            raise Unavailable("the service has stopped", reason="DRAINING")
        if state is State.ASLEEP:
            raise Unavailable(
                "the service sleeps; wake it first",
                reason="ASLEEP",
                retry_after=_BOOT_RETRY_SECONDS,
            )
        metadata = {"phase": self._phase}
        if state is State.FAILED:
            raise Unavailable(
                f"the service failed: {self._failure}",
                reason="NO_BACKEND" if self._base is State.READY else "BOOT_FAILED",
                metadata=metadata,
            )
        elapsed = time.monotonic() - self._created
        metadata["elapsed_seconds"] = f"{elapsed:.1f}"
        raise Unavailable(
            f"the service is starting (phase {self._phase or 'none yet'})",
            reason="BOOTING",
            metadata=metadata,
            retry_after=_BOOT_RETRY_SECONDS,
        )

    def snapshot(self) -> LifecycleSnapshot:
        """All facts at this instant."""
        with self._lock:
            now = time.monotonic()
            phases = list(self._phases)
            if self._base is State.BOOTING:
                phases.append(self._phase_record(now))
            return LifecycleSnapshot(
                state=self.state,
                reason=self.reason,
                phase=self._phase,
                fraction=self._fraction,
                elapsed=now - self._created,
                boot_id=self.boot_id,
                degraded=dict(self._degraded),
                phases=tuple(phases),
                booted=self._base not in (State.NOT_STARTED, State.BOOTING),
                sequence=self._sequence,
            )

    def subscribe(self, callback: Callable[[LifecycleSnapshot], None]) -> Callable[[], None]:
        """Calls back after each change; returns the function that ends it."""
        with self._lock:
            self._subscribers.append(callback)

        def unsubscribe() -> None:
            with self._lock:
                if callback in self._subscribers:
                    self._subscribers.remove(callback)

        return unsubscribe

    def _changed(self) -> None:
        with self._lock:
            self._sequence += 1
            subscribers = list(self._subscribers)
        snapshot = self.snapshot()
        for subscriber in subscribers:
            subscriber(snapshot)

    def _set_asleep(self, asleep: bool) -> None:
        with self._lock:
            if self._asleep == asleep:
                return
            self._asleep = asleep
        self._changed()

    def _close_phase(self, now: float) -> None:
        if self._base is State.BOOTING:
            self._phases.append(self._phase_record(now))

    def _phase_record(self, now: float) -> PhaseRecord:
        return PhaseRecord(
            self._phase, self._phase_started - self._created, now - self._phase_started
        )
