"""API keys in the store."""

from __future__ import annotations

from typing import Any

import msgspec

from antiphon_gateway.identity.keys import KeyRecord
from antiphon_gateway.store.database import Store
from antiphon_gateway.store.schema import api_keys


class KeyTable:
    """The stored keys; each method raises Unavailable while the store is lost."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(self, digest: str) -> KeyRecord | None:
        """The record of a key, revoked ones included."""
        async with self._store.read() as connection:
            row = (
                await connection.execute(api_keys.select().where(api_keys.c.digest == digest))
            ).one_or_none()
        return _record(row) if row is not None else None

    async def add(self, record: KeyRecord) -> None:
        """Keeps a new key."""
        async with self._store.write() as connection:
            await connection.execute(
                api_keys.insert().values(
                    digest=record.sha256,
                    name=record.name,
                    tenant=record.tenant,
                    grant=msgspec.json.encode(record),
                    created_at=record.created_at,
                )
            )

    async def list(self) -> list[KeyRecord]:
        """Every key, oldest first."""
        async with self._store.read() as connection:
            rows = await connection.execute(
                api_keys.select().order_by(api_keys.c.created_at, api_keys.c.digest)
            )
            return [_record(row) for row in rows]

    async def revoke(self, key_id: str, now: int) -> int:
        """Revokes the keys whose digest begins so; returns how many were not revoked before."""
        async with self._store.write() as connection:
            result = await connection.execute(
                api_keys.update()
                .where(api_keys.c.digest.startswith(key_id, autoescape=True))
                .where(api_keys.c.revoked_at.is_(None))
                .values(revoked_at=now)
            )
        return result.rowcount


def _record(row: Any) -> KeyRecord:
    record = msgspec.json.decode(row.grant, type=KeyRecord)
    return msgspec.structs.replace(record, revoked_at=row.revoked_at)
