"""What the front refuses before the engine is asked: the engine's own door has the last word."""

from __future__ import annotations

from antiphon_core.errors import ResourceExhausted
from antiphon_core.lifecycle import Lifecycle

from antiphon_llm.front.engine_errors import engine_error

_CLOSED = {
    "DRAINING": "the engine finishes what it has and stops",
    "ASLEEP": "the service sleeps; wake it first",
    "MEMORY_PRESSURE": "memory ran out; the engine finishes what it has first",
    "NO_BACKEND": "the engine met a fault and waits for a step that succeeds",
}
"""What the engine's door means, by the reason that it reports."""


def report_door(lifecycle: Lifecycle, closed: str) -> None:
    """Shows an engine that sleeps, or lets nobody in because it is about to, as a service that
    sleeps; a door that is shut otherwise as a part that does not work, with its reason."""
    if closed == "ASLEEP":
        lifecycle.asleep()
    else:
        lifecycle.awake()
    if closed and closed != "ASLEEP":
        lifecycle.degraded("engine door", _CLOSED.get(closed, closed))
    else:
        lifecycle.recovered("engine door")


def require_open(
    closed: str,
    *,
    count: int,
    running: int,
    waiting: int,
    queue_limit: int,
    service_seconds: float,
) -> None:
    """Lets ``count`` more sequences through, or tells why not and when to come back.

    Args:
        closed: the reason that the engine's last report gave; empty when its door is open.
        count: sequences that want in.
        running: sequences that are on their way or in the engine; none may be left for a door
            that memory pressure has shut.
        waiting: sequences that they would wait behind.
        queue_limit: sequences that may wait.
        service_seconds: what one of those ahead takes of an engine's row.

    Raises:
        ResourceExhausted: the queue is full, or memory is short.
        Unavailable: the engine drains, sleeps or is at fault.
    """
    retry_after = min(60.0, max(0.5, service_seconds * (waiting + 1)))
    if closed:
        short = closed == "MEMORY_PRESSURE"
        raise engine_error(
            _CLOSED.get(closed, ""),
            closed,
            retry_after,
            limit=0 if short else None,
            observed=running if short else None,
        )
    if waiting + count > queue_limit:
        raise ResourceExhausted(
            f"{waiting} requests wait, the limit is {queue_limit}",
            reason="QUEUE_FULL",
            metadata={"limit": str(queue_limit), "observed": str(waiting)},
            retry_after=retry_after,
        )
