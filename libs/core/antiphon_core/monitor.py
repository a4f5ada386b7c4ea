"""Metrics that every process has: build, readiness, boot phases, event loop lag."""

from __future__ import annotations

import asyncio
import time

from antiphon_core import metrics
from antiphon_core.lifecycle import Lifecycle, LifecycleSnapshot

_LAG_INTERVAL = 0.5
LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class ProcessMonitor:
    """Keeps the process's own metrics up to date.

    Args:
        service: name of the process.
        version: its release.
        lifecycle: source of readiness, degradations and phases.
    """

    def __init__(self, service: str, version: str, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        build = metrics.gauge(
            "build_info", "1 for the running build", ("service", "version", "boot_id")
        )
        build.labels(service, version, lifecycle.boot_id).set(1)
        self._ready = metrics.gauge("ready", "1 when ready, else 0 with the reason", ("reason",))
        self._degraded = metrics.gauge(
            "degraded", "1 for each part that is missing", ("component", "reason")
        )
        self._phases = metrics.gauge(
            "boot_phase_seconds", "Duration of each boot phase", ("phase",)
        )
        self._lag = metrics.histogram(
            "event_loop_lag_seconds", "How late a timer fired", buckets=LAG_BUCKETS
        )
        self._show(lifecycle.snapshot())
        self._unsubscribe = lifecycle.subscribe(self._show)

    async def run(self) -> None:
        """Measures the event loop's lag until cancelled."""
        try:
            while True:
                due = time.monotonic() + _LAG_INTERVAL
                await asyncio.sleep(_LAG_INTERVAL)
                self._lag.observe(max(0.0, time.monotonic() - due))
        finally:
            self._unsubscribe()

    def _show(self, snapshot: LifecycleSnapshot) -> None:
        ready = self._lifecycle.is_ready
        self._ready.clear()
        self._ready.labels("" if ready else snapshot.state.name).set(int(ready))
        self._degraded.clear()
        for component, reason in snapshot.degraded.items():
            self._degraded.labels(component, reason).set(1)
        for phase in snapshot.phases:
            self._phases.labels(phase.name).set(phase.duration)
