"""Shared buckets, running requests and the account of usage in the store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Table, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from antiphon_gateway.quota.quotas import Exchange
from antiphon_gateway.quota.usage import UsageKey, Used
from antiphon_gateway.store.database import Store
from antiphon_gateway.store.schema import quota_buckets, quota_running, usage

_SEEN_SECONDS = 5.0
"""Counts of a replica that has said nothing for so long no longer count."""


class QuotaTable:
    """See ``antiphon_gateway.quota.quotas.Shares``."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def is_shared(self) -> bool:
        """Whether other replicas draw from the same buckets."""
        return self._store.is_shared

    @property
    def is_available(self) -> bool:
        """Whether the store answers."""
        return self._store.is_available

    async def exchange(self, wanted: Sequence[Exchange]) -> list[float]:
        """Takes from and gives to the shared buckets; what was granted of each."""
        now = time.time()
        async with self._store.write() as connection:
            return [await _exchange(connection, item, now) for item in wanted]

    async def running_elsewhere(self, replica: str, counts: dict[str, int]) -> dict[str, int]:
        """Tells how many requests run here; returns how many run at the other replicas."""
        now = time.time()
        table = quota_running
        elsewhere = (
            select(table.c.subject, func.sum(table.c.count))
            .where(table.c.subject.in_(counts), table.c.replica != replica)
            .where(table.c.seen_at > now - _SEEN_SECONDS)
            .group_by(table.c.subject)
        )
        async with self._store.write() as connection:
            for subject in sorted(counts):
                added = _insert(connection, table).values(
                    subject=subject, replica=replica, count=counts[subject], seen_at=now
                )
                await connection.execute(
                    added.on_conflict_do_update(
                        index_elements=["subject", "replica"],
                        set_={"count": counts[subject], "seen_at": now},
                    )
                )
            rows = (await connection.execute(elsewhere)).all()
        return {subject: int(count) for subject, count in rows}

    async def add_usage(self, amounts: dict[UsageKey, Used]) -> None:
        """Adds to the account."""
        names = Used.__struct_fields__
        async with self._store.write() as connection:
            for key, used in sorted(amounts.items(), key=lambda pair: repr(pair[0])):
                given = {name: getattr(used, name) for name in names}
                added = _insert(connection, usage).values(
                    day=key.day,
                    tenant=key.tenant,
                    key_id=key.key_id,
                    model=key.model[:255],
                    **given,
                )
                await connection.execute(
                    added.on_conflict_do_update(
                        index_elements=["day", "tenant", "key_id", "model"],
                        set_={name: usage.c[name] + given[name] for name in names},
                    )
                )

    async def used_on(self, day: str, *, tenant: str | None, key_id: str | None) -> Used:
        """The account of a day, of a tenant or of a key."""
        names = Used.__struct_fields__
        query = select(*(func.coalesce(func.sum(usage.c[name]), 0) for name in names))
        query = query.where(usage.c.day == day)
        if tenant is not None:
            query = query.where(usage.c.tenant == tenant)
        if key_id is not None:
            query = query.where(usage.c.key_id == key_id)
        async with self._store.read() as connection:
            row = (await connection.execute(query)).one()
        counts = {name: int(value) for name, value in zip(names[:-1], row[:-1], strict=True)}
        return Used(**counts, audio_seconds=float(row[-1]))

    async def usage_of(self, day: str) -> list[tuple[UsageKey, Used]]:
        """Every row of a day."""
        query = select(usage).where(usage.c.day == day).order_by(*usage.primary_key.columns)
        async with self._store.read() as connection:
            rows = (await connection.execute(query)).all()
        return [(UsageKey(*row[:4]), Used(*row[4:])) for row in rows]


async def _exchange(connection: AsyncConnection, wanted: Exchange, now: float) -> float:
    table = quota_buckets
    place = (table.c.subject == wanted.subject, table.c.resource == wanted.resource)
    full = _insert(connection, table).values(
        subject=wanted.subject, resource=wanted.resource, level=wanted.capacity, updated_at=now
    )
    await connection.execute(full.on_conflict_do_nothing())
    row = (await connection.execute(select(table).where(*place).with_for_update())).one()
    # Clocks of replicas differ a little; a bucket never loses by that.
    elapsed = max(0.0, now - row.updated_at)
    level = min(wanted.capacity, row.level + elapsed * wanted.rate)
    granted = min(wanted.want, max(0.0, level)) if wanted.want > 0 else wanted.want
    await connection.execute(
        table.update()
        .where(*place)
        .values(level=min(wanted.capacity, level - granted), updated_at=max(now, row.updated_at))
    )
    return granted


def _insert(connection: AsyncConnection, table: Table) -> Any:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table)
