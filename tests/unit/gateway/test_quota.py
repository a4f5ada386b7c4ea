"""Quotas: refusals take nothing, reservations settle, replicas share, the account adds up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from antiphon_core import metrics
from antiphon_core.errors import ResourceExhausted, Unavailable
from antiphon_gateway.identity.principal import Principal
from antiphon_gateway.quota import quotas as quotas_module
from antiphon_gateway.quota.bucket import Bucket
from antiphon_gateway.quota.limits import QuotaLimits
from antiphon_gateway.quota.meter import Meter
from antiphon_gateway.quota.quotas import Exchange, Quotas
from antiphon_gateway.quota.settings import QuotaSettings
from antiphon_gateway.quota.usage import UsageKey, Used, today
from antiphon_gateway.store.quotas import QuotaTable
from antiphon_gateway.store.records import new_object_id
from antiphon_gateway.store.settings import StoreSettings
from antiphon_gateway.store.storage import Storage
from hypothesis import given
from hypothesis import strategies as st
from support.postgres import Server


class Clock:
    """Stands for the time module in the module under test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(quotas_module, "time", made)
    return made


def principal(key_id: str = "k", tenant: str = "t", **limits: float) -> Principal:
    return Principal(tenant=tenant, key_id=key_id, limits=QuotaLimits(**limits))


def local(**settings: object) -> Quotas:
    return Quotas(QuotaSettings.model_validate(settings), None)


async def refused(call: Callable, *arguments: object, **options: object) -> ResourceExhausted:
    with pytest.raises(ResourceExhausted) as error:
        await call(*arguments, **options)
    return error.value


def header(meter: Meter, name: str) -> str:
    return dict(meter.headers())[b"x-ratelimit-" + name.encode()].decode()


async def test_requests_a_second(clock: Clock) -> None:
    quotas = local()
    who = principal(requests_per_second=2, burst_seconds=2)
    meters = [await quotas.admit(who) for _ in range(4)]
    error = await refused(quotas.admit, who)
    assert (error.reason, error.retry_after) == ("RATE_LIMITED", 0.5)
    assert error.metadata == {"limit": "4", "observed": "1"}
    assert header(meters[-1], "limit-requests") == "4"
    assert header(meters[-1], "remaining-requests") == "0"
    assert header(meters[-1], "reset-requests") == "2.000s"
    clock.now += 0.5
    await quotas.admit(who)
    await refused(quotas.admit, who)
    assert await quotas.admit(principal("other", requests_per_second=2))


async def test_concurrency(clock: Clock) -> None:
    quotas = local()
    who = principal(concurrency=2, requests_per_second=100)
    first, second = await quotas.admit(who), await quotas.admit(who)
    before = header(first, "remaining-requests")
    assert (await refused(quotas.admit, who)).reason == "RATE_LIMITED"
    assert header(first, "remaining-requests") == before, "a refusal takes nothing"
    first.close()
    first.close()
    await quotas.admit(who)
    await refused(quotas.admit, who)
    second.close()


async def test_tokens_are_reserved_and_settled(clock: Clock) -> None:
    quotas = local()
    who = principal(tokens_per_second=100, requests_per_second=10)
    meter = await quotas.admit(who)
    one = await meter.reserve(100, 500)
    assert header(meter, "remaining-tokens") == "400"
    other = await quotas.admit(who)
    requests = header(other, "remaining-requests")
    error = await refused(other.reserve, 1, 400)
    assert (error.reason, error.retry_after) == ("RATE_LIMITED", 0.01)
    assert header(other, "remaining-tokens") == "400"
    assert float(header(other, "remaining-requests")) == float(requests) + 1
    one.settle("m", Used(requests=1, prompt_tokens=90, output_tokens=10))
    one.settle("m", Used(requests=1, prompt_tokens=90, output_tokens=10))
    assert header(meter, "remaining-tokens") == "900"


async def test_more_than_was_reserved_is_owed(clock: Clock) -> None:
    quotas = local(assumed_output_tokens=10)
    who = principal(tokens_per_second=10)
    meter = await quotas.admit(who)
    reservation = await meter.reserve(10, None)
    reservation.settle("m", Used(prompt_tokens=10, output_tokens=190))
    assert header(meter, "remaining-tokens") == "0"
    assert (await refused(meter.reserve, 1, 0)).retry_after == pytest.approx(10.1)
    clock.now += 10.1
    await meter.reserve(1, 0)


async def test_what_can_never_pass_is_not_to_be_tried_again() -> None:
    meter = await local().admit(principal(tokens_per_second=10))
    assert (await refused(meter.reserve, 1, 100)).reason == "LIMIT_TOO_SMALL"


async def test_key_and_tenant_both_bind(clock: Clock) -> None:
    quotas = local(tenant={"concurrency": 3}, tenants={"big": {"concurrency": 9}}, key={})
    for _ in range(2):
        await quotas.admit(principal("a", "small"))
    await quotas.admit(principal("b", "small"))
    error = await refused(quotas.admit, principal("c", "small"))
    assert "tenant:small" in error.message
    for number in range(9):
        await quotas.admit(principal(f"k{number}", "big"))
    await refused(quotas.admit, principal("k0", "big"))
    keyed = local(key={"concurrency": 1})
    await keyed.admit(principal("a"))
    await refused(keyed.admit, principal("a"))
    await keyed.admit(principal("b"))


async def test_a_tenants_refusal_takes_nothing_of_the_key(clock: Clock) -> None:
    quotas = local(tenant={"requests_per_second": 1, "burst_seconds": 1})
    who = principal("a", requests_per_second=5, burst_seconds=1)
    meter = await quotas.admit(who)
    for _ in range(8):
        await refused(quotas.admit, who)
    clock.now += 1
    quotas._subjects["key:a"].buckets["requests"].refill(clock.now)
    assert quotas._subjects["key:a"].buckets["requests"].level == 5
    meter.close()


async def test_daily_tokens_and_audio(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    quotas = local()
    who = principal(tokens_per_day=100, audio_seconds_per_day=10)
    meter = await quotas.admit(who)
    (await meter.reserve(10, 70)).settle("m", Used(prompt_tokens=10, output_tokens=50))
    held = await meter.reserve(0, 30)
    error = await refused(meter.reserve, 11, 0)
    assert error.reason == "QUOTA_SPENT" and error.metadata == {"limit": "100", "observed": "101"}
    held.settle("m", Used())
    meter.check_audio()
    meter.charge("v", Used(audio_seconds=10.5))
    with pytest.raises(ResourceExhausted):
        meter.check_audio()
    monkeypatch.setattr(quotas_module, "today", lambda: "2999-01-01")
    tomorrow = await quotas.admit(who)
    tomorrow.check_audio()
    await tomorrow.reserve(100, 0)


async def test_batches_are_bound_by_the_day_only(clock: Clock) -> None:
    quotas = local()
    limits = {"requests_per_second": 1, "burst_seconds": 1, "concurrency": 1}
    who = principal(tokens_per_day=100, tokens_per_second=1, **limits)
    meters = [await quotas.admit(who, is_batch=True) for _ in range(5)]
    await meters[0].reserve(50, 10)
    assert (await refused(meters[1].reserve, 50, 0)).reason == "QUOTA_SPENT"
    await quotas.admit(who)


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(-3, 3)), max_size=40))
def test_a_bucket_never_holds_more_than_it_may(steps: list[tuple[float, float]]) -> None:
    bucket, now = Bucket(2.0, 8.0, 0.0), 0.0
    for wait, amount in steps:
        now += wait
        bucket.refill(now)
        bucket.take(amount)
        assert bucket.level <= 8.0
        needed = bucket.wait_for(1.0)
        other = Bucket(2.0, 8.0, now)
        other.level = bucket.level
        other.refill(now + needed)
        assert other.level >= 1.0 - 1e-6


# With a store.


async def test_the_account_adds_up(storage: Storage) -> None:
    key = UsageKey(today(), new_object_id("t"), "k", "m")
    amounts = {key: Used(1, 10, 4, 5, 0.5)}
    await storage.quotas.add_usage(amounts)
    await storage.quotas.add_usage(amounts)
    found = await storage.quotas.used_on(key.day, tenant=key.tenant, key_id=None)
    assert found == Used(2, 20, 8, 10, 1.0)
    assert (key, found) in await storage.quotas.usage_of(key.day)
    assert await storage.quotas.used_on("1999-01-01", tenant=key.tenant, key_id=None) == Used()


async def test_a_day_goes_on_after_a_restart(storage: Storage) -> None:
    name = new_object_id("k")
    who = principal(name, new_object_id("t"), tokens_per_day=100)
    first = Quotas(QuotaSettings(), storage.quotas)
    first.start()
    meter = await first.admit(who)
    (await meter.reserve(40, 40)).settle("m", Used(prompt_tokens=40, output_tokens=40))
    await first.close()
    second = Quotas(QuotaSettings(), storage.quotas)
    meter = await second.admit(who)
    assert (await refused(meter.reserve, 21, 0)).reason == "QUOTA_SPENT"
    await meter.reserve(20, 0)


async def test_the_account_survives_a_lost_store(storage: Storage) -> None:
    quotas = Quotas(QuotaSettings(), storage.quotas)
    who = principal(tenant=new_object_id("t"))
    storage.store.is_available = False
    quotas.account(who, "m", Used(requests=1))
    with pytest.raises(Unavailable):
        await quotas.sync()
    quotas.account(who, "m", Used(requests=1))
    storage.store.is_available = True
    await quotas.sync()
    found = await storage.quotas.used_on(today(), tenant=who.tenant, key_id=None)
    assert found.requests == 2


async def test_a_shared_bucket_gives_what_it_has(storage: Storage) -> None:
    subject = new_object_id("s")

    async def exchange(want: float) -> float:
        return (await storage.quotas.exchange([Exchange(subject, "tokens", 0.001, 10.0, want)]))[0]

    assert await exchange(4) == 4
    granted = await asyncio.gather(*(exchange(4) for _ in range(4)))
    assert sum(granted) == pytest.approx(6, abs=0.01)
    assert await exchange(-3) == -3
    assert await exchange(9) == pytest.approx(3, abs=0.01)
    await exchange(-99)
    assert await exchange(99) == pytest.approx(10, abs=0.01)


async def replicas(postgres: Server, folder: Path, count: int) -> list[tuple[Quotas, Storage]]:
    made = []
    for _ in range(count):
        storage = Storage(StoreSettings(directory=folder, url=postgres.url))
        await storage.store.open()
        made.append((Quotas(QuotaSettings(), storage.quotas), storage))
    return made


async def admitted(quotas: Quotas, who: Principal, tries: int) -> int:
    count = 0
    for _ in range(tries):
        try:
            (await quotas.admit(who)).close()
            count += 1
        except ResourceExhausted:
            pass
    return count


async def test_three_replicas_share_one_rate(
    postgres: Server, tmp_path: Path, clock: Clock
) -> None:
    made = await replicas(postgres, tmp_path, 3)
    who = principal(new_object_id("k"), requests_per_second=0.5, burst_seconds=40)
    counts = await asyncio.gather(*(admitted(quotas, who, 15) for quotas, _ in made))
    assert 20 <= sum(counts) <= 21, "as many as one process would admit"
    clock.now += 100  # what one gives back, another can use
    for quotas, _ in made:
        await quotas.sync()
    for _, storage in made:
        await storage.close()


async def test_unused_shares_go_back(postgres: Server, tmp_path: Path, clock: Clock) -> None:
    (one, first), (two, second) = await replicas(postgres, tmp_path, 2)
    who = principal(new_object_id("k"), requests_per_second=0.001, burst_seconds=10_000)
    assert await admitted(one, who, 2) == 2
    one._subjects[f"key:{who.key_id}"].used_at = float("-inf")
    await one.sync()
    assert await admitted(two, who, 12) == 8
    await first.close()
    await second.close()


async def test_concurrency_counts_the_other_replicas(postgres: Server, tmp_path: Path) -> None:
    (one, first), (two, second) = await replicas(postgres, tmp_path, 2)
    who = principal(new_object_id("k"), concurrency=3)
    held = [await one.admit(who), await one.admit(who)]
    mine = await two.admit(who)
    mine.close()
    await one.sync()
    await two.sync()
    await two.admit(who)
    assert (await refused(two.admit, who)).metadata == {"limit": "3", "observed": "3"}
    for meter in held:
        meter.close()
    await first.close()
    await second.close()


async def test_without_the_store_limits_are_local(postgres: Server, tmp_path: Path) -> None:
    ((quotas, storage),) = await replicas(postgres, tmp_path, 1)
    who = principal(new_object_id("k"), requests_per_second=1, burst_seconds=5)
    assert await admitted(quotas, who, 3) == 3
    labels = {"path": "quotas", "result": "fallback", "reason": "store_unavailable"}
    before = metrics.value("path_total", **labels) or 0
    storage.store.is_available = False
    assert await admitted(quotas, who, 50) < 50
    assert (metrics.value("path_total", **labels) or 0) > before
    storage.store.is_available = True
    await storage.close()


def test_the_table_is_what_quotas_take(tmp_path: Path) -> None:
    table: quotas_module.Shares = QuotaTable(Storage(StoreSettings(directory=tmp_path)).store)
    assert not table.is_shared and not table.is_available
