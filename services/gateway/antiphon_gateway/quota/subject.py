"""One key or tenant: its limits and what it uses."""

from __future__ import annotations

import math

from antiphon_core.errors import ResourceExhausted

from antiphon_gateway.quota.bucket import Bucket
from antiphon_gateway.quota.limits import QuotaLimits

_CONCURRENCY_RETRY_SECONDS = 1.0
RESOURCES = ("requests", "tokens")


class Subject:
    """The account of a key or a tenant in this process.

    Args:
        name: ``key:<id>`` or ``tenant:<name>``.
        limits: of it.
        now: seconds of a monotonic clock.
    """

    def __init__(self, name: str, limits: QuotaLimits, now: float) -> None:
        self.name = name
        self.limits = limits
        self.running = 0
        self.running_elsewhere = 0
        self.reserved_tokens = 0
        self.tokens_today = 0
        self.audio_today = 0.0
        self.day = ""
        self.used_at = now
        self.buckets: dict[str, Bucket] = {}
        rates = (limits.requests_per_second, limits.tokens_per_second)
        for resource, rate in zip(RESOURCES, rates, strict=True):
            if rate is not None:
                capacity = max(1.0, rate * limits.burst_seconds)
                self.buckets[resource] = Bucket(rate, capacity, now)

    @property
    def has_daily(self) -> bool:
        """Whether something is limited by day."""
        return not (
            self.limits.tokens_per_day is None and self.limits.audio_seconds_per_day is None
        )

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it runs."""
        return not self.running and not self.reserved_tokens

    def begin_day(self, day: str, tokens: int, audio: float) -> None:
        """Starts from what the account of the day says."""
        self.day, self.tokens_today, self.audio_today = day, tokens, audio

    def check_concurrency(self) -> None:
        """Raises ResourceExhausted where one more request would be too many."""
        limit = self.limits.concurrency
        observed = self.running + self.running_elsewhere
        if limit is not None and observed >= limit:
            raise ResourceExhausted(
                f"{self.name} may run {limit} requests at a time",
                reason="RATE_LIMITED",
                metadata={"limit": str(limit), "observed": str(observed)},
                retry_after=_CONCURRENCY_RETRY_SECONDS,
            )

    def check_rate(self, resource: str, amount: float) -> None:
        """Raises ResourceExhausted where the rate does not allow the amount now, or ever."""
        bucket = self.buckets.get(resource)
        if bucket is None or bucket.level >= amount:
            return
        facts = {"limit": f"{bucket.capacity:g}", "observed": f"{amount:g}"}
        if amount > bucket.capacity:
            raise ResourceExhausted(
                f"{self.name} may use {bucket.capacity:g} {resource} at once; this request asks "
                f"for {amount:g}: ask for less",
                reason="LIMIT_TOO_SMALL",
                metadata=facts,
            )
        raise ResourceExhausted(
            f"{self.name} may use {bucket.rate:g} {resource} a second",
            reason="RATE_LIMITED",
            metadata=facts,
            retry_after=bucket.wait_for(amount),
        )

    def check_day(self, tokens: int, audio_seconds: float = 0.0) -> None:
        """Raises ResourceExhausted where the day's amount would be passed."""
        asked = self.tokens_today + self.reserved_tokens + tokens
        limit = self.limits.tokens_per_day
        if limit is not None and tokens and asked > limit:
            raise self._spent("tokens", limit, asked)
        seconds = self.limits.audio_seconds_per_day
        if seconds is not None and audio_seconds and self.audio_today >= seconds:
            raise self._spent("seconds of audio", seconds, math.ceil(self.audio_today))

    def _spent(self, unit: str, limit: float, observed: float) -> ResourceExhausted:
        return ResourceExhausted(
            f"{self.name} may use {limit:g} {unit} a day; the next day begins at 00:00 UTC",
            reason="QUOTA_SPENT",
            metadata={"limit": f"{limit:g}", "observed": f"{observed:g}"},
        )
