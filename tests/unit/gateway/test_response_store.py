"""Responses in both databases: chains, tenants, deletion, expiry."""

from __future__ import annotations

import time
import uuid

import pytest
from antiphon_core.errors import InvalidArgument, NotFound
from antiphon_gateway.store import responses as table
from antiphon_gateway.store.records import StoredResponse, new_object_id
from antiphon_gateway.store.storage import Storage


@pytest.fixture
def tenant() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


def response(tenant: str, previous: str | None = None, lasts: int = 60) -> StoredResponse:
    now = int(time.time())
    identifier = new_object_id("resp_")
    return StoredResponse(
        id=identifier,
        tenant=tenant,
        created_at=now,
        expires_at=now + lasts,
        input=b"[]",
        response=b'{"output":[]}',
        previous_id=previous,
    )


async def kept(storage: Storage, tenant: str, count: int) -> list[StoredResponse]:
    made: list[StoredResponse] = []
    for _ in range(count):
        made.append(response(tenant, made[-1].id if made else None))
        await storage.responses.add(made[-1])
    return made


async def test_a_response_comes_back_as_it_was(storage: Storage, tenant: str) -> None:
    (made,) = await kept(storage, tenant, 1)
    assert await storage.responses.get(tenant, made.id) == made


async def test_a_chain_is_oldest_first(storage: Storage, tenant: str) -> None:
    made = await kept(storage, tenant, 4)
    branch = response(tenant, made[1].id)
    await storage.responses.add(branch)
    chain = storage.responses.chain
    assert await chain(tenant, made[3].id, "f") == made
    assert await chain(tenant, branch.id, "f") == [*made[:2], branch]
    assert await chain(tenant, made[0].id, "f") == made[:1]


async def test_other_tenants_see_nothing(storage: Storage, tenant: str) -> None:
    made = await kept(storage, tenant, 2)
    foreign = response(tenant + "x", made[1].id)
    await storage.responses.add(foreign)
    with pytest.raises(NotFound):
        await storage.responses.get(tenant + "x", made[1].id)
    with pytest.raises(NotFound):
        await storage.responses.delete(tenant + "x", made[1].id)
    with pytest.raises(NotFound) as error:
        await storage.responses.chain(tenant + "x", foreign.id, "previous_response_id")
    assert error.value.field == "previous_response_id"
    assert await storage.responses.get(tenant, made[1].id) == made[1]


async def test_a_chain_with_a_gap_is_refused_or_cut(storage: Storage, tenant: str) -> None:
    made = await kept(storage, tenant, 3)
    await storage.responses.delete(tenant, made[0].id)
    with pytest.raises(NotFound, match="came before, was deleted"):
        await storage.responses.chain(tenant, made[2].id, "f")
    cut = await storage.responses.chain(tenant, made[2].id, "f", must_be_whole=False)
    assert cut == made[1:]
    with pytest.raises(NotFound):
        await storage.responses.delete(tenant, made[0].id)


async def test_a_chain_has_a_bound(
    storage: Storage, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "LONGEST_CHAIN", 3)
    made = await kept(storage, tenant, 4)
    assert len(await storage.responses.chain(tenant, made[2].id, "f")) == 3
    with pytest.raises(InvalidArgument, match="at most 3 responses"):
        await storage.responses.chain(tenant, made[3].id, "f")


async def test_expired_responses_are_gone_and_then_deleted(storage: Storage, tenant: str) -> None:
    old, young = response(tenant, lasts=-1), response(tenant)
    after_old = response(tenant, old.id)
    for item in (old, young, after_old):
        await storage.responses.add(item)
    with pytest.raises(NotFound):
        await storage.responses.get(tenant, old.id)
    with pytest.raises(NotFound, match="has expired"):
        await storage.responses.chain(tenant, after_old.id, "f")
    assert await storage.responses.delete_expired() >= 1
    assert await storage.responses.delete_expired() == 0
    async with storage.store.read() as connection:
        query = table.responses.select().where(table.responses.c.tenant == tenant)
        assert {row.id for row in await connection.execute(query)} == {young.id, after_old.id}


@pytest.mark.parametrize("identifier", ["", "resp_none", "a" * 65, "x\0y", "resp_'; --"])
async def test_odd_ids_are_not_found(storage: Storage, tenant: str, identifier: str) -> None:
    for asked in (
        storage.responses.get(tenant, identifier),
        storage.responses.chain(tenant, identifier, "f"),
        storage.responses.delete(tenant, identifier),
    ):
        with pytest.raises(NotFound):
            await asked
