"""Two gateways over one PostgreSQL: a batch has one worker at a time, and outlives each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from antiphon_gateway.identity.keys import KeyRecord, digest_of
from fake_backends import LlmScript
from gateway_bench import GatewayBench
from support.postgres import Server, binaries, running_server
from support.waiting import until

LINES = 40
KEY = {"authorization": "Bearer key"}
OVER = ("completed", "failed", "expired", "cancelled")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with running_server() as server:
        yield server


@pytest_asyncio.fixture
async def pair(postgres: Server, tmp_path: Path) -> AsyncIterator[list[GatewayBench]]:
    made = []
    for _ in range(2):
        bench = GatewayBench(
            store={"directory": str(tmp_path), "url": postgres.url, "timeout_seconds": 30.0},
            identity={"stored_keys": True},
            batches={"lease_seconds": 6.0, "poll_seconds": 0.05, "max_in_flight": 2},
        )
        await bench.start()
        await until(lambda bench=bench: bench.gateway.storage.store.is_available)
        bench.fakes.llm.script = LlmScript(delay=0.005)
        made.append(bench)
    keys = made[0].gateway.storage.keys
    if await keys.find(digest_of("key")) is None:
        await keys.add(KeyRecord(digest_of("key"), tenant="t", created_at=1))
    yield made
    for bench in made:
        await bench.stop()


async def start(bench: GatewayBench) -> str:
    rows = [
        {
            "custom_id": str(number),
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": "base-model", "prompt": f"<{number}>", "echo": True},
        }
        for number in range(LINES)
    ]
    content = "\n".join(map(json.dumps, rows)).encode()
    file = await bench.http.post(
        "/v1/files", files={"file": ("a", content)}, data={"purpose": "batch"}, headers=KEY
    )
    body = {
        "input_file_id": file.json()["id"],
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    }
    return (await bench.http.post("/v1/batches", json=body, headers=KEY)).json()["id"]


async def seen(bench: GatewayBench, batch_id: str) -> dict:
    response = await bench.http.get(f"/v1/batches/{batch_id}", headers=KEY)
    return response.json()


async def over(bench: GatewayBench, batch_id: str) -> dict:
    async with asyncio.timeout(30):
        while (batch := await seen(bench, batch_id))["status"] not in OVER:
            await asyncio.sleep(0.02)
    return batch


def starts(bench: GatewayBench) -> int:
    return len(bench.fakes.llm.starts)


async def test_one_works_and_the_other_goes_on_when_it_stops(pair: list[GatewayBench]) -> None:
    batch_id = await start(pair[0])
    await until(lambda: starts(pair[0]) + starts(pair[1]) > 5)
    assert min(starts(bench) for bench in pair) == 0, "one at a time"
    worker, other = sorted(pair, key=starts, reverse=True)
    assert worker.gateway.batches is not None
    await worker.gateway.batches.close()
    batch = await over(other, batch_id)
    assert batch["status"] == "completed" and starts(other) > 0
    content = await other.http.get(f"/v1/files/{batch['output_file_id']}/content", headers=KEY)
    rows = [json.loads(line) for line in content.text.splitlines()]
    assert [row["custom_id"] for row in rows] == [str(number) for number in range(LINES)]


async def test_a_batch_ends_with_its_key(pair: list[GatewayBench]) -> None:
    for bench in pair:
        bench.fakes.llm.script = LlmScript(delay=0.1)
    batch_id = await start(pair[0])
    await until(lambda: starts(pair[0]) + starts(pair[1]) > 2)
    storage = pair[0].gateway.storage
    assert await storage.keys.revoke(digest_of("key")[:12], now=5) == 1

    async def status() -> str:
        return (await storage.batches.get("t", batch_id)).status

    async with asyncio.timeout(30):
        while await status() != "cancelled":
            await asyncio.sleep(0.05)
    assert (await storage.batches.get("t", batch_id)).completed < LINES


@pytest.mark.parametrize("name", ["%00", "a%00b", "%ff", "x" * 5000, "'", "file-%27%20OR%201"])
async def test_names_that_a_database_refuses_are_not_found(
    pair: list[GatewayBench], name: str
) -> None:
    keys = pair[0].gateway.storage.keys
    if await keys.find(digest_of("odd")) is None:
        await keys.add(KeyRecord(digest_of("odd"), tenant="o", created_at=1))
    headers = {"authorization": "Bearer odd"}
    http = pair[0].http
    for path in (f"/v1/files/{name}", f"/v1/files/{name}/content", f"/v1/batches/{name}"):
        assert (await http.get(path, headers=headers)).status_code == 404, path
    assert (await http.delete(f"/v1/files/{name}", headers=headers)).status_code == 404
    assert (await http.post(f"/v1/batches/{name}/cancel", headers=headers)).status_code == 404
    for path in ("/v1/files", "/v1/batches"):
        assert (await http.get(f"{path}?after={name}", headers=headers)).status_code == 400
    made = await http.post(
        "/v1/files",
        files={"file": ("a\0b", b"x")},
        data={"purpose": "batch"},
        headers=headers,
    )
    assert made.status_code in (200, 400)
    body = {"input_file_id": "\0", "endpoint": "/v1/completions", "completion_window": "24h"}
    assert (await http.post("/v1/batches", json=body, headers=headers)).status_code == 404
