"""Admission by quotas, shared by all replicas where they share a store."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from antiphon_core import metrics
from antiphon_core.errors import Unavailable
from antiphon_core.logs import get_logger
from msgspec import Struct

from antiphon_gateway.identity.principal import Principal
from antiphon_gateway.quota.limits import QuotaLimits
from antiphon_gateway.quota.meter import Meter
from antiphon_gateway.quota.settings import QuotaSettings
from antiphon_gateway.quota.subject import Subject
from antiphon_gateway.quota.usage import UsageKey, Used, today

SYNC_SECONDS = 1.0
_IDLE_SECONDS = 60.0
_SHARE_AHEAD = 1.25
"""A replica holds what it used in the last second, and a little more."""

log = get_logger(__name__)


class Exchange(Struct):
    """What a replica wants of a shared bucket; negative gives back."""

    subject: str
    resource: str
    rate: float
    capacity: float
    want: float


class Shares(Protocol):
    """The store's side of quotas; every method raises Unavailable while the store is lost."""

    @property
    def is_shared(self) -> bool:
        """Whether other replicas draw from the same buckets."""
        ...

    @property
    def is_available(self) -> bool:
        """Whether it answers."""
        ...

    async def exchange(self, wanted: Sequence[Exchange]) -> list[float]:
        """What was granted of each."""
        ...

    async def running_elsewhere(self, replica: str, counts: dict[str, int]) -> dict[str, int]:
        """Tells how many requests run here; returns how many run at the other replicas."""
        ...

    async def add_usage(self, amounts: dict[UsageKey, Used]) -> None:
        """Adds to the account."""
        ...

    async def used_on(self, day: str, *, tenant: str | None, key_id: str | None) -> Used:
        """The account of a day."""
        ...


class Quotas:
    """Admits requests. ``start`` before the first one, ``close`` after the last.

    Args:
        settings: limits that do not stand with a key.
        shares: the store; None keeps all account in this process.
    """

    def __init__(self, settings: QuotaSettings, shares: Shares | None) -> None:
        self.settings = settings
        self._shares = shares
        self._replica = uuid.uuid4().hex
        self._subjects: dict[str, Subject] = {}
        self._pending: dict[UsageKey, Used] = {}
        self._key_limits = settings.key.limits
        self._tenant_limits = settings.tenant.limits
        self._tenants = {name: given.limits for name, given in settings.tenants.items()}
        self._task: asyncio.Task[None] | None = None

    @property
    def keeps_account(self) -> bool:
        """Whether what is used is written down."""
        return self._shares is not None

    def start(self) -> None:
        """Begins to exchange with the store each second."""
        if self._shares is not None:
            self._task = asyncio.create_task(self._sync_forever(), name="quotas")

    async def close(self) -> None:
        """Writes what is not yet in the account, and gives shares back."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            for subject in self._subjects.values():
                subject.used_at = float("-inf")
            with suppress(Unavailable):
                await self.sync()

    async def admit(self, principal: Principal, *, is_batch: bool = False) -> Meter:
        """Takes one request of every limit of the key and its tenant.

        Raises:
            ResourceExhausted: RATE_LIMITED; nothing was taken.
        """
        subjects = self._subjects_of(principal)
        for subject in subjects:
            await self._begin_day(subject)
            if not is_batch:
                await self.fill(subject, "requests", 1)
        if not is_batch:
            for subject in subjects:
                subject.check_concurrency()
                subject.check_rate("requests", 1)
            for subject in subjects:
                if "requests" in subject.buckets:
                    subject.buckets["requests"].take(1)
        meter = Meter(self, principal, subjects, is_batch=is_batch)
        return meter

    async def fill(self, subject: Subject, resource: str, amount: float) -> None:
        """Brings a bucket up to date, from the shared one where that is needed."""
        bucket = subject.buckets.get(resource)
        if bucket is None:
            return
        now = time.monotonic()
        shares = self._shares
        if shares is None or not shares.is_shared or not shares.is_available:
            if shares is not None and shares.is_shared:
                metrics.fallback("quotas", "store_unavailable")
            bucket.refill(now)
            return
        bucket.hold(now)
        if bucket.level >= amount or now < bucket.empty_until or amount > bucket.capacity:
            return
        want = max(amount - bucket.level, bucket.rate * SYNC_SECONDS)
        exchange = Exchange(subject.name, resource, bucket.rate, bucket.capacity, want)
        with suppress(Unavailable):
            (granted,) = await shares.exchange([exchange])
            bucket.level += granted
            if bucket.level < amount:
                bucket.empty_until = now + min(SYNC_SECONDS, bucket.wait_for(amount))

    def account(self, principal: Principal, model: str, used: Used) -> None:
        """Adds to the account, which the store gets within a second."""
        if self._shares is not None:
            key = UsageKey(today(), principal.tenant, principal.key_id, model)
            self._pending.setdefault(key, Used()).add(used)

    async def sync(self) -> None:
        """One exchange with the store.

        Raises:
            Unavailable: it does not answer; nothing is lost.
        """
        shares = self._shares
        assert shares is not None
        await self._write_usage(shares)
        if shares.is_shared:
            await self._exchange_buckets(shares)
            await self._exchange_running(shares)
        self._forget_idle()
        for subject in self._subjects.values():
            if subject.has_daily:
                await self._read_day(subject, today())

    def _subjects_of(self, principal: Principal) -> list[Subject]:
        of_key = principal.limits if not principal.limits.is_unlimited else self._key_limits
        of_tenant = self._tenants.get(principal.tenant, self._tenant_limits)
        named: list[tuple[str, QuotaLimits]] = []
        if principal.key_id:
            named.append((f"key:{principal.key_id}", of_key))
        named.append((f"tenant:{principal.tenant}", of_tenant))
        return [self._subject(name, limits) for name, limits in named if not limits.is_unlimited]

    def _subject(self, name: str, limits: QuotaLimits) -> Subject:
        now = time.monotonic()
        subject = self._subjects.get(name)
        if subject is None or (subject.limits != limits and subject.is_idle):
            subject = self._subjects[name] = Subject(name, limits, now)
            if self._shares is not None and self._shares.is_shared:
                for bucket in subject.buckets.values():
                    bucket.level = 0.0  # its share of the shared bucket has yet to be leased
        subject.used_at = now
        return subject

    async def _begin_day(self, subject: Subject) -> None:
        day = today()
        if subject.has_daily and subject.day != day:
            if self._shares is not None:
                with suppress(Unavailable):
                    await self._read_day(subject, day)
                    return
            subject.begin_day(day, 0, 0.0)

    async def _read_day(self, subject: Subject, day: str) -> None:
        assert self._shares is not None
        kind, _, name = subject.name.partition(":")
        tenant, key_id = (name, None) if kind == "tenant" else (None, name)
        used = await self._shares.used_on(day, tenant=tenant, key_id=key_id)
        for key, more in self._pending.items():
            if key.day == day and name == (key.tenant if kind == "tenant" else key.key_id):
                used.add(more)
        subject.begin_day(day, used.prompt_tokens + used.output_tokens, used.audio_seconds)

    async def _write_usage(self, shares: Shares) -> None:
        amounts, self._pending = self._pending, {}
        if not amounts:
            return
        try:
            await shares.add_usage(amounts)
        except BaseException:
            for key, used in amounts.items():
                self._pending.setdefault(key, Used()).add(used)
            raise

    async def _exchange_buckets(self, shares: Shares) -> None:
        now = time.monotonic()
        places = [
            (subject, resource, bucket)
            for subject in sorted(self._subjects.values(), key=lambda item: item.name)
            for resource, bucket in sorted(subject.buckets.items())
        ]
        wanted = []
        for subject, resource, bucket in places:
            is_used = now - subject.used_at < _IDLE_SECONDS
            target = max(0.0, bucket.taken) * _SHARE_AHEAD if is_used else 0.0
            want = min(target, bucket.capacity) - bucket.level
            wanted.append(Exchange(subject.name, resource, bucket.rate, bucket.capacity, want))
        if not wanted:
            return
        granted = await shares.exchange(wanted)
        for (_, _, bucket), amount in zip(places, granted, strict=True):
            bucket.level += amount
            bucket.taken = 0.0

    async def _exchange_running(self, shares: Shares) -> None:
        limited = {
            name: subject
            for name, subject in self._subjects.items()
            if subject.limits.concurrency is not None
        }
        if limited:
            counts = {name: subject.running for name, subject in limited.items()}
            elsewhere = await shares.running_elsewhere(self._replica, counts)
            for name, subject in limited.items():
                subject.running_elsewhere = elsewhere.get(name, 0)

    def _forget_idle(self) -> None:
        limit = time.monotonic() - _IDLE_SECONDS
        for name in [n for n, s in self._subjects.items() if s.is_idle and s.used_at < limit]:
            del self._subjects[name]

    async def _sync_forever(self) -> None:
        while True:
            await asyncio.sleep(SYNC_SECONDS)
            with suppress(Unavailable):  # the store itself says that it is lost
                await self.sync()
