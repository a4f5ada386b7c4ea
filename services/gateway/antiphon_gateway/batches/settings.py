"""Settings of batches, section ``[gateway.batches]``."""

from __future__ import annotations

from antiphon_core.config import Settings, setting


class BatchSettings(Settings):
    """Bounds on batches and on what one replica does of them at a time."""

    max_lines: int = setting(50_000, doc="Most lines of one batch.", ge=1)
    max_bytes: int = setting(200 * 1024 * 1024, doc="Largest input file of a batch.", ge=1024)
    max_running: int = setting(4, doc="Batches that one replica works on at a time.", ge=1)
    max_in_flight: int = setting(
        8, doc="Requests of all batches that one replica runs at a time.", ge=1
    )
    lease_seconds: float = setting(
        10.0, doc="A batch of a replica that says nothing for so long goes to another.", gt=0
    )
    poll_seconds: float = setting(1.0, doc="Time between looks for new batches.", gt=0)

    @property
    def look_seconds(self) -> float:
        """Between two looks at a running batch: its lease and whether it was cancelled."""
        return min(1.0, self.lease_seconds / 4)
