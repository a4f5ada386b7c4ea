"""What a scripted servicer saw."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon_core.rpc.context import current


@dataclass
class Calls:
    """What a servicer saw."""

    requests: list = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    traceparents: list[str] = field(default_factory=list)
    running: int = 0
    cancelled_at: list[float] = field(default_factory=list)
    """Calls that were cancelled, in a wait or (GeneratorExit) at a yield."""

    def begin(self, request: object, request_id: str = "", traceparent: str = "") -> None:
        """Counts a request; its ids are the call's where it brings none of its own."""
        self.requests.append(request)
        self.request_ids.append(request_id or current().request_id)
        self.traceparents.append(traceparent or current().traceparent)
        self.running += 1
