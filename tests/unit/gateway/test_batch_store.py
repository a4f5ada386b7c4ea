"""Files and batches in both databases: claims, rows that are kept once, ends that happen once."""

from __future__ import annotations

import asyncio
import time

import pytest
from antiphon_core.errors import FailedPrecondition, NotFound
from antiphon_gateway.identity.principal import Principal
from antiphon_gateway.quota.limits import QuotaLimits
from antiphon_gateway.store.records import (
    Batch,
    BatchRecord,
    BatchStatus,
    LineError,
    StoredFile,
    new_object_id,
)
from antiphon_gateway.store.storage import Storage


def new_batch(tenant: str = "t") -> Batch:
    principal = Principal(tenant=tenant, models=("m",), limits=QuotaLimits(concurrency=2))
    record = BatchRecord("/v1/completions", "24h", principal, {"a": "b"}, 3600)
    record.errors = [LineError("code", "message", 3)]
    batch = Batch(
        id=new_object_id("batch_"),
        tenant=tenant,
        status=BatchStatus.VALIDATING,
        input_file_id=new_object_id("file-"),
        expires_at=int(time.time()) + 60,
        record=record,
    )
    batch.enter(BatchStatus.VALIDATING)
    return batch


def new_file(file_id: str, tenant: str = "t") -> StoredFile:
    return StoredFile(file_id, tenant, "name", "batch", 3, int(time.time()), new_object_id(""))


async def claimed(storage: Storage, batch: Batch, owner: str, seconds: float = 60) -> bool:
    """Whether the owner gets the batch; others of the shared database are left alone."""
    found = await storage.batches.claim(owner, seconds, 1000)
    return batch.id in [item.id for item in found]


def test_ids_sort_by_time() -> None:
    ids = [new_object_id("x-") for _ in range(100)]
    assert len(set(ids)) == 100
    assert [i[:16] for i in ids] == sorted(i[:16] for i in ids)


async def test_a_batch_comes_back_as_it_was(storage: Storage) -> None:
    batch = new_batch()
    await storage.batches.add(batch)
    assert await storage.batches.get("t", batch.id) == batch
    with pytest.raises(NotFound):
        await storage.batches.get("other", batch.id)


async def test_one_owner_at_a_time(storage: Storage) -> None:
    batch = new_batch()
    await storage.batches.add(batch)
    assert await claimed(storage, batch, "one")
    assert not await claimed(storage, batch, "two")
    assert await storage.batches.renew(batch.id, "one", 0.0) is BatchStatus.VALIDATING
    await asyncio.sleep(0.01)
    assert await claimed(storage, batch, "two")
    assert await storage.batches.renew(batch.id, "one", 60) is None
    batch.enter(BatchStatus.COMPLETED)
    assert not await storage.batches.finish(batch, "one")
    await storage.batches.release("two")
    assert await claimed(storage, batch, "three")
    assert await storage.batches.finish(batch, "three")
    await storage.batches.release("three")
    assert not await claimed(storage, batch, "four"), "it is over"


async def test_concurrent_claims_share_nothing(storage: Storage) -> None:
    made = [new_batch() for _ in range(6)]
    for batch in made:
        await storage.batches.add(batch)
    found = await asyncio.gather(*(storage.batches.claim(f"o{n}", 60, 3) for n in range(4)))
    ids = [batch.id for part in found for batch in part]
    assert len(ids) == len(set(ids))


async def test_a_line_keeps_its_first_row(storage: Storage) -> None:
    batch = new_batch()
    await storage.batches.add(batch)
    await storage.batches.add_rows(batch.id, [(2, False, b"two\n"), (0, True, b"zero\n")])
    await storage.batches.add_rows(batch.id, [(2, True, b"again\n"), (1, False, b"one\n")])
    found = await storage.batches.get("t", batch.id)
    assert (found.completed, found.failed) == (2, 1)
    assert await storage.batches.done_lines(batch.id) == {0, 1, 2}
    good = [page async for page in storage.batches.rows(batch.id, failed=False)]
    bad = [page async for page in storage.batches.rows(batch.id, failed=True)]
    assert good == [[b"one\n", b"two\n"]] and bad == [[b"zero\n"]]


async def test_rows_come_in_pages(storage: Storage) -> None:
    batch = new_batch()
    await storage.batches.add(batch)
    rows = [(line, False, b"%d" % line) for line in reversed(range(450))]
    await storage.batches.add_rows(batch.id, rows)
    pages = [page async for page in storage.batches.rows(batch.id, failed=False)]
    assert [len(page) for page in pages] == [200, 200, 50]
    assert [int(row) for page in pages for row in page] == list(range(450))


async def test_the_end_keeps_the_files_and_drops_the_rows(storage: Storage) -> None:
    batch = new_batch()
    await storage.batches.add(batch)
    assert await claimed(storage, batch, "one")
    await storage.batches.add_rows(batch.id, [(0, False, b"x")])
    assert (
        await storage.batches.advance(batch, BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)
        is BatchStatus.IN_PROGRESS
    )
    await storage.batches.cancel("t", batch.id)
    found = await storage.batches.advance(batch, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING)
    assert found is BatchStatus.CANCELLING
    file = new_file(new_object_id("file-"))
    batch.enter(BatchStatus.CANCELLED)
    assert await storage.batches.finish(batch, "one", [file])
    assert await storage.files.get("t", file.id) == file
    assert await storage.batches.done_lines(batch.id) == set()
    kept = await storage.batches.get("t", batch.id)
    assert set(kept.record.times) == {"validating", "in_progress", "cancelling", "cancelled"}
    with pytest.raises(FailedPrecondition):
        await storage.batches.cancel("t", batch.id)


async def test_an_input_in_use_stays(storage: Storage) -> None:
    batch = new_batch()
    file = new_file(batch.input_file_id)
    await storage.files.add(file)
    await storage.batches.add(batch)
    with pytest.raises(FailedPrecondition) as used:
        await storage.files.delete("t", file.id)
    assert used.value.reason == "IN_USE"
    assert await claimed(storage, batch, "one")
    batch.enter(BatchStatus.COMPLETED)
    await storage.batches.finish(batch, "one")
    assert await storage.files.delete("t", file.id) == file
    assert file.blob not in await storage.files.blobs()
