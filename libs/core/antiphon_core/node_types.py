"""What a service tells NodeAdminService about itself, as plain values. None is unknown, not 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ServerInfo:
    """Versions, build and limits; never paths."""

    service: str
    version: str
    commit: str = ""
    config_digest: str = ""
    device: str = ""
    limits: Mapping[str, int] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    implementations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeMeasures:
    """Gauges of one instant, read from what the service holds anyway."""

    models: Sequence[str] = ()
    slots_used: int | None = None
    slots_total: int | None = None
    running: int | None = None
    waiting: int | None = None
    waiting_batch: int | None = None
    kv_entries_used: int | None = None
    kv_entries_cached: int | None = None
    kv_entries_total: int | None = None
    tick_age: float | None = None
    """Seconds since the worker loop's last tick."""
    resident_bytes: int | None = None
    worker_restarts: int = 0

    @property
    def loaded(self) -> bool:
        """Whether work runs or waits, so that watchers want finer steps."""
        return bool(self.running or self.waiting or self.waiting_batch or self.slots_used)

    @property
    def load(self) -> tuple[object, ...]:
        """What the node serves and how much work it has."""
        return (
            tuple(self.models),
            self.slots_used,
            self.slots_total,
            self.running,
            self.waiting,
            self.waiting_batch,
            self.worker_restarts,
        )


@dataclass(frozen=True)
class Flushed:
    """What a flush of the prefix cache made free."""

    entries: int
    bytes: int


@dataclass(frozen=True)
class RequestPhase:
    """A phase of a request; seconds from arrival, end None while it runs."""

    name: str
    start: float
    end: float | None = None


@dataclass(frozen=True)
class RequestRecord:
    """What one request went through."""

    request_id: str
    operation: str
    model: str
    arrived_at: float
    """time.time() seconds."""
    phases: Sequence[RequestPhase] = ()
    finish_reason: str = ""
    """Empty while it runs."""
    input_count: int = 0
    output_count: int = 0
