"""Reading of optional fields, and times."""

from __future__ import annotations

from typing import Any

from google.protobuf.duration_pb2 import Duration


def optional(message: Any, name: str) -> Any:
    """The field's value, None where the caller left it out."""
    return getattr(message, name) if message.HasField(name) else None


def decimal(message: Any, name: str) -> float | None:
    """An optional 32-bit number as the caller wrote it."""
    value = optional(message, name)
    return None if value is None else shortest(value)


def shortest(value: float) -> float:
    """The decimal that the caller wrote: the wire's 32 bits turn 0.01 into a smaller number."""
    return float(f"{value:.7g}")


def duration(seconds: float) -> Duration:
    """Seconds as a message; a clock that stepped back makes it 0."""
    nanos = max(0, round(seconds * 1e9))
    return Duration(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)
