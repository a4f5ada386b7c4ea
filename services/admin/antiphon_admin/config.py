"""Settings of the admin service: the file's [admin] section."""

from __future__ import annotations

from antiphon_core.config import Settings, setting
from pydantic import field_validator

STALE_AFTER_S = 3.0
"""A status older than this counts as not ready."""


class AdminSettings(Settings):
    """Where admin listens and which replicas it watches."""

    bind: str = setting("127.0.0.1:8084", doc="host:port of the gRPC services.")
    http_bind: str = setting(
        "127.0.0.1:8085", doc="host:port of /metrics, /health, /health/ready and /snapshot."
    )
    replicas: tuple[str, ...] = setting(
        ("llm=127.0.0.1:8082", "vocoder=127.0.0.1:8083"),
        doc="service=host:port of each replica's NodeAdminService; repeat a service for replicas.",
    )
    metrics_interval_s: float = setting(
        5.0, gt=0, le=60, doc="Seconds between two readings of each replica's metrics."
    )
    drain_grace_s: float = setting(
        60.0, ge=0, le=600, doc="Seconds that running calls get at shutdown."
    )

    @field_validator("replicas")
    @classmethod
    def _well_formed(cls, replicas: tuple[str, ...]) -> tuple[str, ...]:
        for replica in replicas:
            service, equals, target = replica.partition("=")
            if not (service and equals and ":" in target):
                raise ValueError(f"{replica!r} is not service=host:port")
        if not replicas:
            raise ValueError("at least one replica is needed")
        return replicas

    def targets(self) -> list[tuple[str, str, str]]:
        """(replica id, service, target) of each replica; ids are service-ordinal."""
        rows = []
        ordinals: dict[str, int] = {}
        for replica in self.replicas:
            service, _, target = replica.partition("=")
            ordinal = ordinals.get(service, 0)
            ordinals[service] = ordinal + 1
            rows.append((f"{service}-{ordinal}", service, target))
        return rows
