"""Backends of one kind: who of them is there, and who takes the next work."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from antiphon_core import metrics

from antiphon_gateway.clients.monitor import STATES, BackendMonitor
from antiphon_gateway.domain.catalog import ModelInfo
from antiphon_gateway.domain.recognition import Recognizer
from antiphon_gateway.domain.speech import Voice
from antiphon_gateway.names import may_use, served_key

Client = TypeVar("Client")
Served = TypeVar("Served", ModelInfo, Voice, Recognizer)

_backends = metrics.gauge(
    "gateway_backends", "Backends in each state as this gateway sees them", ("service", "state")
)


@dataclass
class Member(Generic[Client, Served]):
    """One backend of a pool."""

    client: Client
    monitor: BackendMonitor
    served: tuple[Served, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    """What it advertises, by name."""


@dataclass
class Pool(Generic[Client, Served]):
    """Backends of one kind; work goes to the one with the most free slots among those that serve
    the asked-for name, and round them where they are equal or count none."""

    members: list[Member[Client, Served]] = field(default_factory=list)
    _turn: Iterator[int] = field(default_factory=itertools.count)

    @property
    def served(self) -> tuple[Served, ...]:
        """What the ready backends serve, without repeats."""
        found: dict[Hashable, Served] = {}
        for member in self.members:
            if member.monitor.is_ready:
                for item in member.served:
                    found.setdefault(served_key(item), item)
        return tuple(found.values())

    @property
    def is_ready(self) -> bool:
        """Whether one backend at least is ready."""
        return any(member.monitor.is_ready for member in self.members)

    @property
    def in_flight_limit(self) -> int | None:
        """Requests that the ready backends hold, running and waiting; None where one of them
        says nothing. At least twice what runs at a time: a bound that is equal refuses bursts
        for which there is room."""
        ready = [member.limits for member in self.members if member.monitor.is_ready]
        if not ready or any("max_rows" not in limits for limits in ready):
            return None
        return sum(
            max(2 * limits["max_rows"], limits["max_rows"] + limits.get("queue_limit", 0))
            for limits in ready
        )

    @property
    def slots(self) -> tuple[int, int] | None:
        """Slots in use and in all of the ready backends; None where one of them says nothing."""
        told = [member.monitor.slots for member in self.members if member.monitor.is_ready]
        known = [slots for slots in told if slots is not None]
        if not known or len(known) < len(told):
            return None
        return sum(used for used, _ in known), sum(total for _, total in known)

    @property
    def reason(self) -> str:
        """Why none is ready; empty when one is."""
        return "" if self.is_ready else self.members[0].monitor.reason

    def count(self, state: str) -> int:
        """Members whose monitor says so."""
        return sum(member.monitor.state == state for member in self.members)

    def require_ready(self) -> None:
        """Admits work.

        Raises:
            Unavailable: BOOTING, DRAINING, ASLEEP or NO_BACKEND.
        """
        if not self.is_ready:
            raise self.members[0].monitor.unavailable()

    def choose(self, served_id: str) -> Client:
        """A ready backend that serves the id; any ready one for an empty id.

        Raises:
            Unavailable: no backend is ready.
        """
        self.require_ready()
        ready = [member for member in self.members if member.monitor.is_ready]
        fitting = [
            member
            for member in ready
            if not served_id
            or any(item.id == served_id and may_use(item) for item in member.served)
        ]
        best = max(member.monitor.free_slots for member in fitting or ready)
        chosen = [m for m in fitting or ready if m.monitor.free_slots == best]
        member = chosen[next(self._turn) % len(chosen)]
        member.monitor.note_start()
        return member.client


def show_states(pool: Pool[Any, Any]) -> None:
    """Has the metrics tell how many members of a pool are in each state."""
    for service in {member.monitor.name for member in pool.members}:
        for state in STATES:
            _backends.labels(service, state).set_function(partial(pool.count, state))
