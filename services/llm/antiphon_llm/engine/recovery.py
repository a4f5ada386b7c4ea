"""What a failed step costs: who ends, who runs again, whether the process goes on."""

from __future__ import annotations

from antiphon_core.logs import get_logger

from antiphon_llm.speculation.breaker import DrafterBroken

from .door import Door
from .failures import FailureKind, classify, error_reason
from .live import LiveRequests
from .plan import StepPlan
from .pressure import MemoryPressure
from .scheduler import Scheduler

_log = get_logger(__name__)

_STRAIGHT_FAILURES = 5
"""Failed steps without one that succeeds, after which the engine is taken to be broken."""


class Recovery:
    """Puts the host's state right after a step that failed at one of its stages.

    A step fails at ``draft``, ``schedule``, ``launch``, ``collect`` or ``commit``. Up to
    ``launch`` nothing ran; from ``collect`` on the rows' progress counts as made and is taken
    back.

    Attributes:
        failures: failed steps by stage and kind.
    """

    def __init__(
        self, scheduler: Scheduler, live: LiveRequests, pressure: MemoryPressure, door: Door
    ) -> None:
        self._scheduler = scheduler
        self._live = live
        self._pressure = pressure
        self._door = door
        self._straight = 0
        self.failures: dict[str, int] = {}

    def succeeded(self) -> None:
        """A step was collected and committed."""
        self._straight = 0
        self._door.healed()
        self._pressure.success()

    def failed(self, error: Exception, stage: str, plan: StepPlan | None) -> None:
        """Handles one failed step, or raises: then the process must end.

        ``plan`` is the failed step's; None where there is none yet.
        """
        kind = classify(error)
        key = f"step failed: {stage}, {kind.name.lower()}"
        self.failures[key] = self.failures.get(key, 0) + 1
        self._straight += 1
        _log.error("step_failed", stage=stage, kind=kind.name, straight=self._straight,
                   exc_info=error)  # fmt: skip
        broken = isinstance(error, DrafterBroken)
        if broken or kind <= FailureKind.POISONED or self._straight >= _STRAIGHT_FAILURES:
            raise error
        if stage in ("draft", "schedule") and kind is FailureKind.REQUEST:
            # Planning serves no single request: what fails there is a defect of the engine.
            raise error
        if plan is not None and plan.rows and not any(row.current for row in plan.rows):
            # It was launched behind a step that failed, for the same rows: nobody waits for it.
            again = False
            self._straight -= 1
        else:
            again = self._again(kind, error)
        if plan is not None:
            if stage != "commit":
                self._give_up_rows(plan, kind, error, again=again)
            if stage in ("collect", "commit"):
                self._scheduler.settle(plan, computed=stage == "commit")
        self._scheduler.check_integrity()

    def _again(self, kind: FailureKind, error: Exception) -> bool:
        """Whether the step's rows may run once more."""
        if kind is FailureKind.OUT_OF_MEMORY:
            self._straight -= 1
            return self._pressure.shortage()
        if kind is FailureKind.POOL_DENIED:
            self._pressure.denied("kv")
            return True
        if kind is FailureKind.INFRASTRUCTURE:
            self._door.fault(error)
        return False

    def _give_up_rows(
        self, plan: StepPlan, kind: FailureKind, error: Exception, *, again: bool
    ) -> None:
        for row in reversed(plan.rows):  # The oldest comes back to the queue's front last.
            if not row.current:
                continue
            if again:
                self._scheduler.requeue(row.request)
            else:
                self._live.finish(
                    row.request,
                    "error",
                    error=f"the step failed: {error}",
                    error_reason=error_reason(kind),
                )
