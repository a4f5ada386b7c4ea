"""Batches in the store: who works on which, and the rows that are done."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from antiphon_core.errors import FailedPrecondition, NotFound
from sqlalchemy import select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from antiphon_gateway.store.database import Store
from antiphon_gateway.store.files import insert_file
from antiphon_gateway.store.records import (
    ACTIVE,
    Batch,
    BatchRecord,
    BatchStatus,
    StoredFile,
    is_object_id,
)
from antiphon_gateway.store.schema import batch_rows, batches

_PAGE_ROWS = 200


class BatchTable:
    """The batches of all tenants; each method raises Unavailable while the store is lost."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, batch: Batch) -> None:
        """Keeps a new batch."""
        async with self._store.write() as connection:
            await connection.execute(
                batches.insert().values(
                    id=batch.id,
                    tenant=batch.tenant,
                    status=batch.status,
                    input_file_id=batch.input_file_id,
                    expires_at=batch.expires_at,
                    record=msgspec.json.encode(batch.record),
                )
            )

    async def get(self, tenant: str, batch_id: str) -> Batch:
        """One batch.

        Raises:
            NotFound: the tenant has no such batch.
        """
        async with self._store.read() as connection:
            return await _batch_of(connection, tenant, batch_id)

    async def list(self, tenant: str, *, after: str = "", limit: int) -> tuple[list[Batch], bool]:
        """A page of the tenant's batches, newest first, and whether more follow."""
        query = select(batches).where(batches.c.tenant == tenant)
        if after:
            query = query.where(batches.c.id < after)
        query = query.order_by(batches.c.id.desc()).limit(limit + 1)
        async with self._store.read() as connection:
            rows = (await connection.execute(query)).all()
        return [_batch(row) for row in rows[:limit]], len(rows) > limit

    async def cancel(self, tenant: str, batch_id: str) -> Batch:
        """Asks for the end of a batch.

        Raises:
            NotFound: the tenant has no such batch.
            FailedPrecondition: WRONG_STATE, it is over or being finalized.
        """
        async with self._store.write() as connection:
            batch = await _batch_of(connection, tenant, batch_id, lock=True)
            if batch.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
                batch.enter(BatchStatus.CANCELLING)
                await _save(connection, batch)
            elif batch.status is not BatchStatus.CANCELLING:
                raise FailedPrecondition(
                    f"{batch_id} is {batch.status}; only a batch that is validating or in "
                    "progress can be cancelled"
                )
        return batch

    async def claim(self, owner: str, seconds: float, limit: int) -> list[Batch]:
        """Takes batches that nobody works on, the oldest first.

        Args:
            owner: the process that will work on them.
            seconds: for which they are its own; see ``renew``.
            limit: how many at most.
        """
        now = time.time()
        idle = (
            select(batches)
            .where(batches.c.status.in_(ACTIVE), batches.c.owned_until < now)
            .order_by(batches.c.id)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        async with self._store.write() as connection:
            rows = (await connection.execute(idle)).all()
            await connection.execute(
                update(batches)
                .where(batches.c.id.in_([row.id for row in rows]))
                .values(owner=owner, owned_until=now + seconds)
            )
        return [_batch(row) for row in rows]

    async def renew(self, batch_id: str, owner: str, seconds: float) -> BatchStatus | None:
        """Keeps a claimed batch; its present status, or None when it was lost to another."""
        async with self._store.write() as connection:
            kept = await connection.execute(
                update(batches)
                .where(batches.c.id == batch_id, batches.c.owner == owner)
                .values(owned_until=time.time() + seconds)
            )
            if not kept.rowcount:
                return None
            query = select(batches.c.status).where(batches.c.id == batch_id)
            return BatchStatus((await connection.execute(query)).scalar_one())

    async def release(self, owner: str) -> None:
        """Gives up all batches of an owner, so that another may take them at once."""
        async with self._store.write() as connection:
            await connection.execute(
                update(batches).where(batches.c.owner == owner).values(owner="", owned_until=0)
            )

    async def advance(self, batch: Batch, former: BatchStatus, status: BatchStatus) -> BatchStatus:
        """Moves a batch on, unless it is not where it is thought to be.

        Returns:
            The status that it has now: a request to cancel may have come between.
        """
        async with self._store.write() as connection:
            found = await _batch_of(connection, batch.tenant, batch.id, lock=True)
            batch.record.times = found.record.times | batch.record.times
            if found.status is not former:
                return found.status
            batch.enter(status)
            await _save(connection, batch)
        return status

    async def done_lines(self, batch_id: str) -> set[int]:
        """Lines, from 0, that have their row."""
        query = select(batch_rows.c.line).where(batch_rows.c.batch_id == batch_id)
        async with self._store.read() as connection:
            return set((await connection.execute(query)).scalars())

    async def add_rows(self, batch_id: str, rows: Sequence[tuple[int, bool, bytes]]) -> None:
        """Keeps finished rows as (line, failed, text); a line that has one keeps it."""
        async with self._store.write() as connection:
            fresh = []
            for line, failed, text in rows:
                dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
                added = await connection.execute(
                    dialect.insert(batch_rows)
                    .values(batch_id=batch_id, line=line, failed=failed, row=text)
                    .on_conflict_do_nothing()
                )
                fresh += [failed] * added.rowcount
            bad = sum(fresh)
            await connection.execute(
                update(batches)
                .where(batches.c.id == batch_id)
                .values(
                    completed=batches.c.completed + len(fresh) - bad,
                    failed=batches.c.failed + bad,
                )
            )

    async def rows(self, batch_id: str, *, failed: bool) -> AsyncIterator[list[bytes]]:
        """The texts of finished or of failed rows in the order of the input, in pages."""
        line = -1
        while True:
            query = (
                select(batch_rows.c.line, batch_rows.c.row)
                .where(batch_rows.c.batch_id == batch_id, batch_rows.c.failed == failed)
                .where(batch_rows.c.line > line)
                .order_by(batch_rows.c.line)
                .limit(_PAGE_ROWS)
            )
            async with self._store.read() as connection:
                page = (await connection.execute(query)).all()
            if not page:
                return
            yield [row.row for row in page]
            line = page[-1].line

    async def finish(self, batch: Batch, owner: str, files: Sequence[StoredFile] = ()) -> bool:
        """Moves to a last status with the files that it made; False when it was lost."""
        async with self._store.write() as connection:
            owned = select(batches).where(batches.c.id == batch.id, batches.c.owner == owner)
            row = (await connection.execute(owned.with_for_update())).first()
            if row is None:
                return False
            batch.record.times = _batch(row).record.times | batch.record.times
            for file in files:
                await insert_file(connection, file)
            await _save(connection, batch)
            await connection.execute(batch_rows.delete().where(batch_rows.c.batch_id == batch.id))
        return True


async def _batch_of(
    connection: AsyncConnection, tenant: str, batch_id: str, *, lock: bool = False
) -> Batch:
    query = select(batches).where(batches.c.id == batch_id, batches.c.tenant == tenant)
    row = None
    if is_object_id(batch_id):
        row = (await connection.execute(query.with_for_update() if lock else query)).first()
    if row is None:
        raise NotFound(f"no batch {batch_id!r}", field="batch_id")
    return _batch(row)


async def _save(connection: AsyncConnection, batch: Batch) -> None:
    await connection.execute(
        update(batches)
        .where(batches.c.id == batch.id)
        .values(status=batch.status, total=batch.total, record=msgspec.json.encode(batch.record))
    )


def _batch(row: Any) -> Batch:
    return Batch(
        id=row.id,
        tenant=row.tenant,
        status=BatchStatus(row.status),
        input_file_id=row.input_file_id,
        expires_at=row.expires_at,
        record=msgspec.json.decode(row.record, type=BatchRecord),
        total=row.total,
        completed=row.completed,
        failed=row.failed,
    )
