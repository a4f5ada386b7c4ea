"""The meter of one request: what it holds of the limits, and what it used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from antiphon_core.errors import ResourceExhausted

from antiphon_gateway.http import Headers
from antiphon_gateway.identity.principal import Principal
from antiphon_gateway.quota.subject import RESOURCES, Subject
from antiphon_gateway.quota.usage import Used

if TYPE_CHECKING:
    from antiphon_gateway.quota.quotas import Quotas

_current: ContextVar[Meter | None] = ContextVar("meter", default=None)


class Meter:
    """Made by ``Quotas.admit``; ``close`` when the request is over.

    Args:
        quotas: that admitted the request.
        principal: whom it is for.
        subjects: its key and its tenant, those that have limits.
        is_batch: a line of a batch: the day's amounts bind it, rates do not.
    """

    def __init__(
        self, quotas: Quotas, principal: Principal, subjects: Sequence[Subject], *, is_batch: bool
    ) -> None:
        self._quotas = quotas
        self._principal = principal
        self._subjects = subjects
        self._is_batch = is_batch
        self._is_counted = not is_batch
        """Whether it took one request of the rate."""
        self._is_closed = False
        for subject in subjects:
            subject.running += not is_batch

    @property
    def is_needed(self) -> bool:
        """Whether anything is limited or kept account of."""
        return bool(self._subjects) or self._quotas.keeps_account

    async def reserve(self, prompt_tokens: int, output_tokens: int | None) -> Reservation:
        """Sets tokens aside for one generation.

        Args:
            prompt_tokens: an estimate will do.
            output_tokens: at most; None where the request names no maximum.

        Raises:
            ResourceExhausted: RATE_LIMITED, LIMIT_TOO_SMALL or QUOTA_SPENT; the request then
                counts as if it had never come.
        """
        assumed = self._quotas.settings.assumed_output_tokens
        amount = prompt_tokens + (assumed if output_tokens is None else output_tokens)
        try:
            for subject in self._subjects:
                subject.check_day(amount)
                if not self._is_batch:
                    await self._quotas.fill(subject, "tokens", amount)
            for subject in self._subjects:
                subject.check_day(amount)
                if not self._is_batch:
                    subject.check_rate("tokens", amount)
        except ResourceExhausted:
            self._uncount()
            raise
        for subject in self._subjects:
            subject.reserved_tokens += amount
            self._take_tokens(subject, amount)
        return Reservation(self, amount)

    def check_audio(self) -> None:
        """Asked before audio is made or recognised.

        Raises:
            ResourceExhausted: QUOTA_SPENT.
        """
        try:
            for subject in self._subjects:
                subject.check_day(0, audio_seconds=1.0)
        except ResourceExhausted:
            self._uncount()
            raise

    def charge(self, model: str, used: Used) -> None:
        """Adds to the account."""
        for subject in self._subjects:
            subject.tokens_today += used.prompt_tokens + used.output_tokens
            subject.audio_today += used.audio_seconds
        self._quotas.account(self._principal, model, used)

    def settle(self, reserved: int, used: int) -> None:
        """Replaces a reservation by what was used."""
        for subject in self._subjects:
            subject.reserved_tokens -= reserved
            self._take_tokens(subject, used - reserved)

    def close(self) -> None:
        """The request is over; again does nothing."""
        if not self._is_closed:
            self._is_closed = True
            for subject in self._subjects:
                subject.running -= not self._is_batch

    def remaining(self) -> Iterator[tuple[str, int, int, float]]:
        """The tightest limit of each kind: name, capacity, what is left, seconds until full."""
        for resource in RESOURCES:
            buckets = [s.buckets[resource] for s in self._subjects if resource in s.buckets]
            if buckets:
                tightest = min(buckets, key=lambda bucket: bucket.level)
                left = round(max(0.0, tightest.level))
                wait = tightest.wait_for(tightest.capacity)
                yield resource, round(tightest.capacity), left, wait

    def headers(self) -> Headers:
        """x-ratelimit-* of the tightest limit of each kind."""
        found: list[tuple[bytes, bytes]] = []
        for resource, capacity, left, wait in self.remaining():
            values = (("limit", f"{capacity}"), ("remaining", f"{left}"), ("reset", f"{wait:.3f}s"))
            found += [
                (f"x-ratelimit-{name}-{resource}".encode(), text.encode()) for name, text in values
            ]
        return found

    def _take_tokens(self, subject: Subject, amount: int) -> None:
        if "tokens" in subject.buckets and not self._is_batch:
            subject.buckets["tokens"].take(amount)

    def _uncount(self) -> None:
        """A refusal consumes nothing."""
        if self._is_counted:
            self._is_counted = False
            for subject in self._subjects:
                if "requests" in subject.buckets:
                    subject.buckets["requests"].take(-1)


class Reservation:
    """Tokens set aside for one generation."""

    def __init__(self, meter: Meter, amount: int) -> None:
        self._meter = meter
        self._amount = amount
        self._is_settled = False

    def settle(self, model: str, used: Used) -> None:
        """Replaces it by what was used; again does nothing."""
        if not self._is_settled:
            self._is_settled = True
            self._meter.settle(self._amount, used.prompt_tokens + used.output_tokens)
            self._meter.charge(model, used)


def current_meter() -> Meter | None:
    """The meter of the current request; None where nothing is metered."""
    return _current.get()


@contextmanager
def use_meter(meter: Meter) -> Iterator[None]:
    """Makes the meter current inside the block, and closes it after."""
    token = _current.set(meter)
    try:
        yield
    finally:
        _current.reset(token)
        meter.close()
