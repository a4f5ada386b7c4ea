"""The account of what was used: one row a day, tenant, key and model."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec import Struct


class UsageKey(Struct, frozen=True):
    """Whose and what for."""

    day: str
    """UTC, YYYY-MM-DD."""
    tenant: str
    key_id: str
    model: str


class Used(Struct):
    """Amounts that are added up."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    audio_seconds: float = 0.0

    def add(self, more: Used) -> None:
        """Adds other amounts to these."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(more, name))


def today() -> str:
    """The present day in UTC."""
    return datetime.now(UTC).date().isoformat()
