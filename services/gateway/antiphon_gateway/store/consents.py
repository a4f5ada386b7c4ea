"""Consents of speakers in the store: a row each, recordings in the blob folder."""

from __future__ import annotations

from typing import Any

from antiphon_core.errors import NotFound
from sqlalchemy import Select, select

from antiphon_gateway.store.database import Store
from antiphon_gateway.store.records import StoredConsent, is_object_id
from antiphon_gateway.store.schema import voice_consents as table


class ConsentTable:
    """The consents of all tenants; each method raises Unavailable while the store is lost."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, consent: StoredConsent) -> None:
        """Keeps a consent whose recording is in place."""
        values = {name: getattr(consent, name) for name in consent.__struct_fields__}
        async with self._store.write() as connection:
            await connection.execute(table.insert().values(**values))

    async def get(self, tenant: str, consent_id: str, field: str = "consent_id") -> StoredConsent:
        """One consent.

        Args:
            tenant: whose it is.
            consent_id: of it.
            field: to blame.

        Raises:
            NotFound: the tenant has no such consent.
        """
        row = None
        if is_object_id(consent_id):
            async with self._store.read() as connection:
                row = (await connection.execute(_one(tenant, consent_id))).first()
        if row is None:
            raise _not_found(consent_id, field)
        return _consent(row)

    async def list(
        self, tenant: str, *, after: str = "", limit: int
    ) -> tuple[list[StoredConsent], bool]:
        """A page of the tenant's consents, the newest first, and whether more follow.

        Args:
            tenant: whose they are.
            after: id of the last one of the former page.
            limit: of the page.
        """
        query = select(table).where(table.c.tenant == tenant)
        if after:
            query = query.where(table.c.id < after)
        async with self._store.read() as connection:
            rows = (
                await connection.execute(query.order_by(table.c.id.desc()).limit(limit + 1))
            ).all()
        return [_consent(row) for row in rows[:limit]], len(rows) > limit

    async def rename(self, tenant: str, consent_id: str, name: str) -> StoredConsent:
        """Gives a consent another name; raises as ``get``."""
        changed = table.update().where(table.c.tenant == tenant, table.c.id == consent_id)
        if is_object_id(consent_id):
            async with self._store.write() as connection:
                await connection.execute(changed.values(name=name))
        return await self.get(tenant, consent_id)

    async def delete(self, tenant: str, consent_id: str) -> StoredConsent:
        """Forgets a consent, whose recording is the caller's to remove; raises as ``get``."""
        consent = await self.get(tenant, consent_id)
        async with self._store.write() as connection:
            gone = table.delete().where(table.c.tenant == tenant, table.c.id == consent_id)
            if not (await connection.execute(gone)).rowcount:
                raise _not_found(consent_id, "consent_id")
        return consent

    async def blobs(self) -> list[str]:
        """The names of all recordings that have a row."""
        async with self._store.read() as connection:
            return [*(await connection.execute(select(table.c.blob))).scalars()]


def _not_found(consent_id: str, field: str) -> NotFound:
    return NotFound(f"{field}: no voice consent {consent_id[:64]!r}", field=field)


def _one(tenant: str, consent_id: str) -> Select[Any]:
    return select(table).where(table.c.tenant == tenant, table.c.id == consent_id)


def _consent(row: Any) -> StoredConsent:
    return StoredConsent(**row._mapping)
