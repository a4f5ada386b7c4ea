"""The store: one schema on both databases, loss noticed, contents whole or absent."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from antiphon_core import metrics
from antiphon_core.errors import FailedPrecondition, Unavailable
from antiphon_gateway.identity.keys import KeyRecord, digest_of, key_id, new_key
from antiphon_gateway.quota.usage import UsageKey, Used
from antiphon_gateway.store.blobs import BlobFolder
from antiphon_gateway.store.database import Store
from antiphon_gateway.store.schema import metadata
from antiphon_gateway.store.settings import StoreSettings
from antiphon_gateway.store.storage import Storage
from support.postgres import Server
from support.waiting import until


async def test_the_migrations_make_the_declared_tables(storage: Storage) -> None:
    def differences(connection) -> list:
        return compare_metadata(MigrationContext.configure(connection), metadata)

    async with storage.store.read() as connection:
        assert await connection.run_sync(differences) == []


async def test_opening_again_keeps_the_rows(storage: Storage) -> None:
    record = KeyRecord(digest_of(new_key()), name="kept", created_at=1)
    await storage.keys.add(record)
    again = Storage(storage.store._settings)
    await again.store.open()
    assert await again.keys.find(record.sha256) == record
    await again.close()


async def test_keys_are_listed_and_revoked_once(storage: Storage) -> None:
    record = KeyRecord(digest_of(new_key()), tenant="acme", scopes=("files",), created_at=7)
    await storage.keys.add(record)
    assert record in await storage.keys.list()
    assert await storage.keys.revoke(key_id(record.sha256), now=9) == 1
    assert await storage.keys.revoke(key_id(record.sha256), now=10) == 0
    found = await storage.keys.find(record.sha256)
    assert found is not None and found.revoked_at == 9
    assert await storage.keys.revoke("%", now=10) == 0


async def test_a_failed_block_writes_nothing(storage: Storage) -> None:
    record = KeyRecord(digest_of(new_key()), created_at=1)
    with pytest.raises(RuntimeError):
        async with storage.store.write() as connection:
            await connection.exec_driver_sql("INSERT INTO quota_running VALUES ('s', 'r', 1, 1.0)")
            raise RuntimeError
    async with storage.store.read() as connection:
        rows = await connection.exec_driver_sql("SELECT 1 FROM quota_running WHERE subject = 's'")
        assert rows.all() == []
    assert await storage.keys.find(record.sha256) is None


async def test_concurrent_writers_do_not_collide(storage: Storage) -> None:
    async def bump() -> None:
        async with storage.store.write() as connection:
            await connection.exec_driver_sql(
                "UPDATE quota_running SET count = count + 1 WHERE subject = 'n'"
            )

    async with storage.store.write() as connection:
        await connection.exec_driver_sql("DELETE FROM quota_running WHERE subject = 'n'")
        await connection.exec_driver_sql("INSERT INTO quota_running VALUES ('n', 'r', 0, 1.0)")
    await asyncio.gather(*(bump() for _ in range(40)))
    async with storage.store.read() as connection:
        rows = await connection.exec_driver_sql(
            "SELECT count FROM quota_running WHERE subject = 'n'"
        )
        assert rows.scalar_one() == 40


async def test_two_replicas_may_open_at_once(postgres: Server, tmp_path: Path) -> None:
    settings = StoreSettings(directory=tmp_path, url=postgres.url)
    stores = [Store(settings) for _ in range(3)]
    await asyncio.gather(*(store.open() for store in stores))
    for store in stores:
        assert store.is_available
        await store.close()


async def test_a_lost_postgres_is_noticed_and_found_again(postgres: Server, tmp_path: Path) -> None:
    storage = Storage(StoreSettings(directory=tmp_path, url=postgres.url, timeout_seconds=2.0))
    storage.start()
    await until(lambda: storage.store.is_available)
    losses = metrics.value("store_losses_total") or 0
    postgres.stop()
    try:
        with pytest.raises(Unavailable) as error:
            await storage.keys.find("0" * 64)
        assert error.value.reason == "STORE_UNAVAILABLE"
        assert not storage.store.is_available
        assert metrics.value("store_available") == 0
        assert metrics.value("store_losses_total") == losses + 1
    finally:
        postgres.start()
    await until(lambda: storage.store.is_available)
    assert await storage.keys.find("0" * 64) is None
    await storage.close()


async def test_a_broken_sqlite_file_is_a_lost_store(tmp_path: Path) -> None:
    (tmp_path / "gateway.sqlite3").write_bytes(b"not a database at all" * 100)
    storage = Storage(StoreSettings(directory=tmp_path))
    storage.start()
    try:
        with pytest.raises(Unavailable):
            await storage.keys.find("0" * 64)
        assert not storage.store.is_available
    finally:
        await storage.close()


async def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = Store(StoreSettings(directory=tmp_path / "file" / "store"))
    with pytest.raises(FailedPrecondition) as error:
        await store.open()
    assert error.value.field == "store.directory"


async def test_sqlite_writes_ahead(tmp_path: Path) -> None:
    store = Store(StoreSettings(directory=tmp_path))
    await store.open()
    with sqlite3.connect(tmp_path / "gateway.sqlite3") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    await store.close()


async def test_blobs_are_whole_or_absent(tmp_path: Path) -> None:
    folder = BlobFolder(tmp_path)
    folder.prepare()
    async with folder.writer() as writer:
        await writer.write(b"one ")
        await writer.write(b"two")
        assert not folder.path(writer.name).exists()
        await writer.commit()
    assert b"".join([chunk async for chunk in folder.chunks(writer.name)]) == b"one two"
    assert writer.size == 7
    with pytest.raises(RuntimeError):
        async with folder.writer() as failed:
            await failed.write(b"half")
            raise RuntimeError
    assert not folder.path(failed.name).exists()
    assert [path.name for path in folder.orphans([], -1)] == [writer.name]
    assert folder.orphans([writer.name], -1) == []
    assert folder.orphans([], 60) == []
    await folder.delete(writer.name)
    await folder.delete(writer.name)
    with pytest.raises(Unavailable):
        [chunk async for chunk in folder.chunks(writer.name)]


async def test_unfinished_writes_are_orphans(tmp_path: Path) -> None:
    folder = BlobFolder(tmp_path)
    folder.prepare()
    left = tmp_path / "incoming" / "abandoned"
    left.write_bytes(b"x")
    os.utime(left, (1, 1))
    assert folder.orphans([], 60) == [left]


async def test_a_folder_stays_with_its_database(tmp_path: Path) -> None:
    first = Store(StoreSettings(directory=tmp_path))
    await first.open()
    await first.close()
    os.rename(tmp_path / "gateway.sqlite3", tmp_path / "moved")
    second = Store(StoreSettings(directory=tmp_path))
    with pytest.raises(FailedPrecondition, match="another database") as error:
        await second.open()
    assert error.value.field == "store.directory"
    assert not second.is_available
    await second.close()


async def test_many_writers_all_get_their_turn(storage: Storage) -> None:
    """Without a queue some writer of SQLite waits for ever while others write on."""
    losses = metrics.value("store_losses_total")

    async def write(number: int) -> None:
        for line in range(20):
            key = UsageKey("1999-01-01", f"t{number}", "k", f"m{line}")
            await storage.quotas.add_usage({key: Used(requests=1)})

    await asyncio.gather(*(write(number) for number in range(24)))
    assert metrics.value("store_losses_total") == losses
    assert storage.store.is_available
