"""Settings of the one-machine suite: the file's [edge] section."""

from __future__ import annotations

from pathlib import Path

from antiphon_core.config import Settings, setting

DEFAULT_PORT = 8080


class EdgeSettings(Settings):
    """Where the suite listens and how its processes are kept."""

    host: str = setting("127.0.0.1", doc="Address of the edge listener.")
    port: int = setting(
        DEFAULT_PORT,
        ge=1,
        le=65528,
        doc="Port of the edge listener; the suite's inner ports are the eight after it.",
    )
    egress: bool = setting(
        False, doc="Whether the gateway dials the services through Envoy's egress listener."
    )
    tls_certificate: str = setting(
        "", doc="PEM certificate chain of the edge; empty is plain text."
    )
    tls_key: str = setting("", doc="PEM private key of the edge.")
    run_dir: Path = setting(
        Path("run"), doc="Directory of logs and the rendered Envoy configuration."
    )
    store_dir: Path | None = setting(
        None,
        doc="Directory of the gateway's files, batches and keys where [gateway.store] names none; "
        "unset is store under run_dir.",
    )
    drain_grace_s: float = setting(
        10.0, ge=0, le=600, doc="Seconds that running requests get when the suite stops."
    )
    restart_limit: int = setting(
        3, ge=0, le=100, doc="Restarts of one service within ten minutes before the suite gives up."
    )

    @property
    def store_directory(self) -> Path:
        """Where the suite's own store is."""
        return self.store_dir or self.run_dir / "store"
