"""What admin knows of every replica: one status stream each, read without asking anybody."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from antiphon_core.errors import AntiphonError, InvalidArgument, NotFound
from antiphon_core.logs import get_logger

from antiphon_admin.config import STALE_AFTER_S

log = get_logger("admin.fleet")

_RECONNECT_S = 0.5


@dataclass(frozen=True)
class ReplicaStatus:
    """A status as received: what admin decides on, and the whole message to hand on."""

    ready: bool
    boot_id: str
    state: str
    message: object
    """The wire message; only the servicer looks inside."""


class ReplicaClient(Protocol):
    """Access to one replica's NodeAdminService."""

    def watch(self) -> AsyncIterator[ReplicaStatus]:
        """Statuses until the stream breaks with an AntiphonError."""
        ...

    async def metrics(self) -> bytes:
        """The replica's metrics as OpenMetrics text."""
        ...

    async def close(self) -> None:
        """Closes the channel."""
        ...


@dataclass
class Replica:
    """One configured replica and the last that was heard of it."""

    id: str
    service: str
    client: ReplicaClient
    status: ReplicaStatus | None = None
    received_at: float = 0.0
    """time.monotonic() of the last status."""
    error: AntiphonError | None = None
    metrics: bytes = b""

    @property
    def age(self) -> float:
        """Seconds since the last status; infinite before the first."""
        return time.monotonic() - self.received_at if self.status else float("inf")

    @property
    def fresh(self) -> bool:
        """Whether the last status may still be believed."""
        return self.age <= STALE_AFTER_S

    @property
    def ready(self) -> bool:
        """Whether the replica takes work."""
        return self.fresh and self.status is not None and self.status.ready


class Fleet:
    """All replicas, kept current by one task each."""

    def __init__(self, replicas: Sequence[Replica], *, metrics_interval: float) -> None:
        self.replicas = list(replicas)
        self._metrics_interval = metrics_interval
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether each service has a ready replica."""
        services = {replica.service for replica in self.replicas}
        return services == {replica.service for replica in self.replicas if replica.ready}

    def metrics_documents(self) -> list[tuple[str, str, bytes]]:
        """(service, replica id, OpenMetrics text) of each replica, as last read."""
        return [(replica.service, replica.id, replica.metrics) for replica in self.replicas]

    async def start(self) -> None:
        """Begins to watch."""
        for replica in self.replicas:
            self._tasks.append(asyncio.create_task(self._watch(replica)))
            self._tasks.append(asyncio.create_task(self._read_metrics(replica)))

    async def stop(self) -> None:
        """Ends every watch and closes the channels."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for replica in self.replicas:
            await replica.client.close()

    async def changes(self, interval: float) -> AsyncIterator[None]:
        """Yields at once, then after each change and at least every ``interval`` seconds."""
        while True:
            self._changed.clear()
            yield
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), interval)

    def select(self, ids: Sequence[str], services: Sequence[str]) -> list[Replica]:
        """The replicas that a selector names; empty selects all.

        Raises:
            NotFound: for an unknown replica id or service, listing the known ones.
        """
        known_ids = [replica.id for replica in self.replicas]
        known_services = sorted({replica.service for replica in self.replicas})
        for name in ids:
            if name not in known_ids:
                raise NotFound(
                    f"no replica {name!r}", field="selector.replica_ids", allowed=known_ids
                )
        for name in services:
            if name not in known_services:
                raise NotFound(
                    f"no service {name!r}", field="selector.services", allowed=known_services
                )
        return [
            replica
            for replica in self.replicas
            if (not ids or replica.id in ids) and (not services or replica.service in services)
        ]

    def select_named(self, ids: Sequence[str], services: Sequence[str]) -> list[Replica]:
        """As ``select``, for mutations: an empty selector is refused.

        Raises:
            InvalidArgument: when nothing is named.
        """
        if not ids and not services:
            raise InvalidArgument(
                "name at least one replica or service", reason="MISSING_FIELD", field="selector"
            )
        return self.select(ids, services)

    async def _watch(self, replica: Replica) -> None:
        while True:
            try:
                async for status in replica.client.watch():
                    self._received(replica, status)
            except AntiphonError as error:
                if replica.error is None:
                    log.warning("status_stream_lost", replica=replica.id, reason=error.reason)
                replica.error = error
                self._changed.set()
            await asyncio.sleep(_RECONNECT_S)

    def _received(self, replica: Replica, status: ReplicaStatus) -> None:
        last = replica.status
        replica.status = status
        replica.received_at = time.monotonic()
        replica.error = None
        if last is None or last.state != status.state or last.boot_id != status.boot_id:
            log.info("replica_state", replica=replica.id, state=status.state)
            self._changed.set()

    async def _read_metrics(self, replica: Replica) -> None:
        while True:
            try:
                replica.metrics = await replica.client.metrics()
            except AntiphonError:
                replica.metrics = b""
            await asyncio.sleep(self._metrics_interval)
