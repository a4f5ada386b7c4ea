"""Files in the store: a row each, contents in the blob folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from antiphon_core.errors import FailedPrecondition, NotFound
from sqlalchemy import Select, and_, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from antiphon_gateway.store.database import Store
from antiphon_gateway.store.records import ACTIVE, StoredFile, is_object_id
from antiphon_gateway.store.schema import batches, files


class FileTable:
    """The files of all tenants; each method raises Unavailable while the store is lost."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, file: StoredFile) -> None:
        """Keeps a file whose contents are in place."""
        async with self._store.write() as connection:
            await insert_file(connection, file)

    async def get(self, tenant: str, file_id: str) -> StoredFile:
        """One file.

        Raises:
            NotFound: the tenant has no such file, or it has expired.
        """
        if not is_object_id(file_id):
            raise file_not_found(file_id)
        async with self._store.read() as connection:
            row = (await connection.execute(_visible(tenant).where(files.c.id == file_id))).first()
        if row is None:
            raise file_not_found(file_id)
        return _file(row)

    async def list(
        self, tenant: str, *, after: str = "", limit: int, newest_first: bool, purpose: str = ""
    ) -> tuple[list[StoredFile], bool]:
        """A page of the tenant's files, and whether more follow.

        Args:
            after: id of the last file of the former page.
        """
        query = _visible(tenant)
        if purpose:
            query = query.where(files.c.purpose == purpose)
        if after:
            query = query.where(files.c.id < after if newest_first else files.c.id > after)
        query = query.order_by(files.c.id.desc() if newest_first else files.c.id).limit(limit + 1)
        async with self._store.read() as connection:
            rows = (await connection.execute(query)).all()
        return [_file(row) for row in rows[:limit]], len(rows) > limit

    async def delete(self, tenant: str, file_id: str) -> StoredFile:
        """Forgets a file; its contents are the caller's to remove.

        Raises:
            NotFound: the tenant has no such file.
            FailedPrecondition: IN_USE, a batch reads it.
        """
        if not is_object_id(file_id):
            raise file_not_found(file_id)
        using = select(batches.c.id).where(
            batches.c.input_file_id == file_id, batches.c.status.in_(ACTIVE)
        )
        async with self._store.write() as connection:
            row = (await connection.execute(_visible(tenant).where(files.c.id == file_id))).first()
            if row is None:
                raise file_not_found(file_id)
            batch_id = (await connection.execute(using)).scalar()
            if batch_id is not None:
                raise FailedPrecondition(
                    f"{file_id} is the input of {batch_id}, which is not over; cancel that first",
                    reason="IN_USE",
                )
            await connection.execute(files.delete().where(files.c.id == file_id))
        return _file(row)

    async def take_expired(self, limit: int = 500) -> Sequence[str]:
        """Forgets files whose time is over; returns the names of their contents."""
        using = select(batches.c.input_file_id).where(batches.c.status.in_(ACTIVE))
        expired = and_(files.c.expires_at <= int(time.time()), files.c.id.not_in(using))
        async with self._store.write() as connection:
            rows = (await connection.execute(select(files).where(expired).limit(limit))).all()
            ids = [row.id for row in rows]
            await connection.execute(files.delete().where(files.c.id.in_(ids)))
        return [row.blob for row in rows]

    async def blobs(self) -> list[str]:
        """The names of all contents that have a row."""
        async with self._store.read() as connection:
            return list((await connection.execute(select(files.c.blob))).scalars())


async def insert_file(connection: AsyncConnection, file: StoredFile) -> None:
    """Adds the row of a file."""
    await connection.execute(
        files.insert().values(**{name: getattr(file, name) for name in file.__struct_fields__})
    )


def file_not_found(file_id: str) -> NotFound:
    """The refusal of an unknown, expired or foreign file."""
    return NotFound(f"no file {file_id!r}", field="file_id")


def _visible(tenant: str) -> Select[Any]:
    lasts = or_(files.c.expires_at.is_(None), files.c.expires_at > int(time.time()))
    return select(files).where(files.c.tenant == tenant, lasts)


def _file(row: Any) -> StoredFile:
    return StoredFile(**row._mapping)
