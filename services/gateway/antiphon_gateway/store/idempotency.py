"""Responses kept under the Idempotency-Key of their request."""

from __future__ import annotations

import time

import msgspec
from msgspec import Struct
from sqlalchemy.dialects import postgresql, sqlite

from antiphon_gateway.store.database import Store
from antiphon_gateway.store.schema import idempotency


class KeptResponse(Struct):
    """What the first request with a key was answered, if it was already."""

    body_hash: str
    status: int | None = None
    """None while it runs."""
    headers: list[tuple[bytes, bytes]] = []
    body: bytes = b""


class IdempotencyTable:
    """The kept responses; each method raises Unavailable while the store is lost."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def begin(self, name: str, body_hash: str, seconds: float) -> KeptResponse | None:
        """Notes that a request runs; what is there already, when it is not the first.

        Args:
            name: of tenant, key, route and Idempotency-Key together.
            body_hash: of this request.
            seconds: after which the note of a request that never ended is void.
        """
        now = time.time()
        table = idempotency
        async with self._store.write() as connection:
            await connection.execute(table.delete().where(table.c.expires_at < now))
            dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
            added = await connection.execute(
                dialect.insert(table)
                .values(id=name, body_hash=body_hash, expires_at=now + seconds)
                .on_conflict_do_nothing()
            )
            if added.rowcount:
                return None
            row = (await connection.execute(table.select().where(table.c.id == name))).one()
        if row.status is None:
            return KeptResponse(row.body_hash)
        headers = msgspec.msgpack.decode(row.headers, type=list[tuple[bytes, bytes]])
        return KeptResponse(row.body_hash, row.status, headers, row.body)

    async def keep(self, name: str, response: KeptResponse, seconds: float) -> None:
        """Keeps the response of a request that ``begin`` noted."""
        async with self._store.write() as connection:
            await connection.execute(
                idempotency.update()
                .where(idempotency.c.id == name)
                .values(
                    status=response.status,
                    headers=msgspec.msgpack.encode(response.headers),
                    body=response.body,
                    expires_at=time.time() + seconds,
                )
            )

    async def forget(self, name: str) -> None:
        """Takes the note of a request back: it had no effect, and may be tried again."""
        async with self._store.write() as connection:
            await connection.execute(idempotency.delete().where(idempotency.c.id == name))
