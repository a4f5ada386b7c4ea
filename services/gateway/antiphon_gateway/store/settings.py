"""Settings of the durable store, section ``[gateway.store]``."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from antiphon_core.config import Settings, setting
from pydantic import model_validator

_POSTGRES_SCHEMES = ("postgresql://", "postgres://")


class StoreSettings(Settings):
    """Where keys, files, batches, usage and shared quotas are kept."""

    directory: Path | None = setting(
        None,
        doc="Folder of the SQLite file and of file contents; unset keeps nothing: no files, "
        "no batches, no stored API keys, no Idempotency-Key. Replicas share it.",
    )
    url: str = setting(
        "",
        doc="postgresql://user:password@host/database; empty takes SQLite in the directory.",
        secret=True,
    )
    timeout_seconds: float = setting(
        5.0, doc="A statement or connection that takes longer counts as loss of the store.", gt=0
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.url and not self.url.startswith(_POSTGRES_SCHEMES):
            raise ValueError("url must begin with postgresql://; leave it empty for SQLite")
        if self.url and self.directory is None:
            raise ValueError("url needs directory too: file contents are kept there")
        return self

    @property
    def is_configured(self) -> bool:
        """Whether anything is kept."""
        return self.directory is not None
