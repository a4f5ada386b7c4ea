"""What one key or tenant may use."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


class QuotaLimits(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits; None sets none."""

    requests_per_second: Positive | None = None
    tokens_per_second: Positive | None = None
    """Prompt and output tokens together."""
    tokens_per_day: Count | None = None
    """A day begins at 00:00 UTC."""
    audio_seconds_per_day: Positive | None = None
    """Speech made and audio recognised, together."""
    concurrency: Count | None = None
    """Requests at a time."""
    burst_seconds: Positive = 10.0
    """Rates may be saved up for so long: a bucket holds rate times burst_seconds, one request at
    least."""

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing is limited."""
        return self == QuotaLimits(burst_seconds=self.burst_seconds)
