"""Responses in the store: what was asked, what was answered, and what came before."""

from __future__ import annotations

import time
from typing import Any

from antiphon_core.errors import InvalidArgument, NotFound
from sqlalchemy import literal, select

from antiphon_gateway.store.database import Store
from antiphon_gateway.store.records import StoredResponse, is_object_id
from antiphon_gateway.store.schema import responses

LONGEST_CHAIN = 1000
"""Responses that one conversation may have."""


class ResponseTable:
    """The responses of all tenants; each method raises Unavailable while the store is lost."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, response: StoredResponse) -> None:
        """Keeps a response that is over."""
        async with self._store.write() as connection:
            await connection.execute(
                responses.insert().values(
                    **{name: getattr(response, name) for name in response.__struct_fields__}
                )
            )

    async def get(
        self, tenant: str, response_id: str, field: str = "response_id"
    ) -> StoredResponse:
        """One response.

        Args:
            tenant: whose it is.
            response_id: of it.
            field: to blame.

        Raises:
            NotFound: the tenant has no such response, or it has expired.
        """
        if not is_object_id(response_id):
            raise response_not_found(response_id, field)
        query = select(responses).where(responses.c.id == response_id, *_visible(tenant))
        async with self._store.read() as connection:
            row = (await connection.execute(query)).first()
        if row is None:
            raise response_not_found(response_id, field)
        return _response(row)

    async def chain(
        self, tenant: str, response_id: str, field: str, *, must_be_whole: bool = True
    ) -> list[StoredResponse]:
        """A response and all that came before it, the oldest first.

        Args:
            tenant: whose they are.
            response_id: of the last one.
            field: to blame.
            must_be_whole: whether a response that is not there any more is an error; else those
                before it are left out.

        Raises:
            NotFound: one of them is not there, or no more.
            InvalidArgument: the conversation has too many responses.
        """
        if not is_object_id(response_id):
            raise response_not_found(response_id, field)
        table = responses
        walk = (
            select(table.c.id, table.c.previous_id, literal(0).label("depth"))
            .where(table.c.id == response_id, *_visible(tenant))
            .cte("walk", recursive=True)
        )
        former = (
            select(table.c.id, table.c.previous_id, walk.c.depth + 1)
            .join(walk, table.c.id == walk.c.previous_id)
            .where(*_visible(tenant), walk.c.depth < LONGEST_CHAIN)
        )
        walk = walk.union_all(former)
        query = select(table).join(walk, walk.c.id == table.c.id).order_by(walk.c.depth.desc())
        async with self._store.read() as connection:
            rows = (await connection.execute(query)).all()
        if not rows:
            raise response_not_found(response_id, field)
        if len(rows) > LONGEST_CHAIN:
            raise InvalidArgument(
                f"{field}: a conversation has at most {LONGEST_CHAIN} responses; "
                "send its items as input",
                field=field,
            )
        if rows[0].previous_id is not None and must_be_whole:
            raise NotFound(
                f"{field}: response {rows[0].previous_id!r}, which came before, was deleted or "
                "has expired",
                field=field,
            )
        return [_response(row) for row in rows]

    async def delete(self, tenant: str, response_id: str) -> None:
        """Forgets a response.

        Raises:
            NotFound: the tenant has no such response.
        """
        gone = 0
        if is_object_id(response_id):
            query = responses.delete().where(responses.c.id == response_id, *_visible(tenant))
            async with self._store.write() as connection:
                gone = (await connection.execute(query)).rowcount
        if not gone:
            raise response_not_found(response_id, "response_id")

    async def delete_expired(self, limit: int = 500) -> int:
        """Forgets responses whose time is over; returns how many, at most ``limit``."""
        expired = (
            select(responses.c.id).where(responses.c.expires_at <= int(time.time())).limit(limit)
        )
        async with self._store.write() as connection:
            ids = list((await connection.execute(expired)).scalars())
            await connection.execute(responses.delete().where(responses.c.id.in_(ids)))
        return len(ids)


def response_not_found(response_id: str, field: str) -> NotFound:
    """The refusal of an id that the tenant does not have."""
    return NotFound(f"{field}: no response {response_id[:64]!r}", field=field)


def _visible(tenant: str) -> tuple[Any, ...]:
    return (responses.c.tenant == tenant, responses.c.expires_at > int(time.time()))


def _response(row: Any) -> StoredResponse:
    return StoredResponse(**{name: getattr(row, name) for name in StoredResponse.__struct_fields__})
