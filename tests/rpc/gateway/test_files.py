"""/v1/files over real sockets, with the unmodified SDK."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
import pytest_asyncio
from antiphon_core.errors import Unavailable
from antiphon_gateway.identity.keys import digest_of
from antiphon_gateway.store.records import StoredFile, new_object_id
from gateway_bench import GatewayBench
from openai import AsyncOpenAI
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEYS = "\n".join(
    f'[[keys]]\nsha256 = "{digest_of(name)}"\ntenant = "{tenant}"'
    for name, tenant in (("one", "a"), ("two", "b"))
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files")
    (path / "keys.toml").write_text(KEYS)
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kept(folder: Path) -> AsyncIterator[GatewayBench]:
    made = GatewayBench(
        store={"directory": str(folder / "store")},
        identity={"keys_file": str(folder / "keys.toml")},
        limits={"file_bytes": 300_000},
    )
    await made.start()
    await until(lambda: made.gateway.storage.store.is_available)
    yield made
    await made.stop()


def client_of(bench: GatewayBench, key: str = "one") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=bench.url + "/v1", api_key=key, max_retries=0)


async def test_create_retrieve_content_delete(kept: GatewayBench) -> None:
    data = bytes(range(256)) * 1000
    async with client_of(kept) as client:
        made = await client.files.create(
            file=("nämé.bin", data),
            purpose="user_data",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        assert (made.bytes, made.filename, made.purpose) == (len(data), "nämé.bin", "user_data")
        assert made.expires_at == made.created_at + 3600
        assert await client.files.retrieve(made.id) == made
        assert (await client.files.content(made.id)).content == data
        assert (await client.files.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.files.content(made.id)
    assert not list(kept.settings.store.directory.glob("blobs/*/*"))


async def test_pages_in_both_orders(kept: GatewayBench) -> None:
    async with client_of(kept) as client:
        made = [
            (await client.files.create(file=(f"{n}.jsonl", b"{}"), purpose="batch")).id
            for n in range(5)
        ]
        newest = [file.id async for file in client.files.list(limit=2)]
        assert newest == made[::-1]
        page = await client.files.list(limit=2, order="asc", after=made[0], purpose="batch")
        assert [file.id for file in page.data] == made[1:3] and page.has_more
        assert (await client.files.list(purpose="user_data")).data == []
        for file_id in made:
            await client.files.delete(file_id)


async def test_other_tenants_see_nothing(kept: GatewayBench) -> None:
    async with client_of(kept) as client, client_of(kept, "two") as other:
        made = await client.files.create(file=("a", b"x"), purpose="user_data")
        for call in (other.files.retrieve, other.files.content, other.files.delete):
            with pytest.raises(openai.NotFoundError) as missing:
                await call(made.id)
            assert missing.value.code == "not_found"
        assert (await other.files.list()).data == []
        await client.files.delete(made.id)


def form(**fields: object) -> dict:
    files = {"file": ("a.jsonl", fields.pop("file", b"x"))}
    return {"files": files, "data": {"purpose": "batch", **fields}}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"purpose": "fine-tune"}, "invalid_value", "purpose"),
        ({"purpose": ""}, "missing_required_parameter", "purpose"),
        (
            {"expires_after[anchor]": "now", "expires_after[seconds]": "3600"},
            "invalid_value",
            "expires_after[anchor]",
        ),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "1"},
            "invalid_value",
            "expires_after[seconds]",
        ),
        ({"file": b"x" * 300_001}, "request_too_large", "file"),
    ],
)
async def test_wrong_fields(kept: GatewayBench, fields: dict, code: str, param: str) -> None:
    refused = await kept.http.post(
        "/v1/files", **form(**fields), headers={"authorization": "Bearer one"}
    )
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert not list(kept.settings.store.directory.glob("blobs/*/*")), "nothing is left behind"


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "limit=10001", "order=up", "purpose=x", "after=batch_1"]
)
async def test_wrong_queries(kept: GatewayBench, query: str) -> None:
    refused = await kept.http.get(f"/v1/files?{query}", headers={"authorization": "Bearer one"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == query.partition("=")[0]


async def test_no_file_part(kept: GatewayBench) -> None:
    refused = await kept.http.post(
        "/v1/files",
        files={"other": ("a", b"x")},
        data={"purpose": "batch"},
        headers={"authorization": "Bearer one"},
    )
    assert refused.json()["error"]["param"] == "file"


async def test_an_expired_file_is_gone(kept: GatewayBench) -> None:
    storage = kept.gateway.storage
    now = int(time.time())
    file = StoredFile(new_object_id("file-"), "a", "old", "batch", 1, now - 9, "0" * 32, now - 1)
    await storage.files.add(file)
    async with client_of(kept) as client:
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(file.id)
        assert (await client.files.list()).data == []
    assert await storage.files.take_expired() == [file.blob]
    assert await storage.files.take_expired() == []


async def test_a_lost_store_is_told(kept: GatewayBench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> None:
        raise Unavailable("gone", reason="STORE_UNAVAILABLE")

    store = kept.gateway.storage.store
    monkeypatch.setattr(store, "_ping", broken)
    store.is_available = False
    try:
        refused = await kept.http.get("/v1/files", headers={"authorization": "Bearer one"})
        assert refused.status_code == 503 and "retry-after" in refused.headers
        ready = await kept.http.get("/health/ready")
        assert (ready.status_code, ready.json()["reasons"]) == (503, ["store_unavailable"])
    finally:
        monkeypatch.undo()
    await until(lambda: store.is_available)
    assert (await kept.http.get("/health/ready")).status_code == 200


async def test_without_a_store() -> None:
    bench = GatewayBench()
    await bench.start()
    try:
        for path in ("/v1/files", "/v1/batches"):
            refused = await bench.http.get(path)
            assert refused.status_code == 400 and "store" in refused.json()["error"]["message"]
    finally:
        await bench.stop()
