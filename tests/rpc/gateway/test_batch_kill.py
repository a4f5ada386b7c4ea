"""kill -9 of the gateway while it works on a batch: the output is that of a quiet run."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import httpx
import pytest
from fake_backends import FakeBackends, LlmScript
from test_process import gateway_process

LINES = 60
OVER = ("completed", "failed", "expired", "cancelled")


def input_file() -> bytes:
    rows = []
    for number in range(LINES):
        body = {"model": "base-model", "prompt": f"<{number}>", "echo": True}
        if number % 7 == 3:
            body["temperature"] = 9  # a row that fails
        row = {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
        rows.append(json.dumps(row))
    return "\n".join(rows).encode()


async def create(http: httpx.AsyncClient) -> str:
    upload = await http.post(
        "/v1/files", files={"file": ("in.jsonl", input_file())}, data={"purpose": "batch"}
    )
    body = {
        "input_file_id": upload.json()["id"],
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    }
    return (await http.post("/v1/batches", json=body)).json()["id"]


async def batch_when(http: httpx.AsyncClient, batch_id: str, rows: int) -> dict:
    """The batch once so many rows are done, or it is over."""
    while True:
        response = await http.get(f"/v1/batches/{batch_id}")
        if response.status_code == 200:
            batch = response.json()
            counts = batch["request_counts"]
            if batch["status"] in OVER or counts["completed"] + counts["failed"] >= rows:
                return batch
        await asyncio.sleep(0.01)


async def stored(http: httpx.AsyncClient) -> None:
    """Until the store is open."""
    while (await http.get("/health/ready")).status_code != 200:
        await asyncio.sleep(0.02)


def facts(content: str) -> list[tuple]:
    """What of the rows does not depend on when they ran."""
    found = []
    for line in content.splitlines():
        row = json.loads(line)
        body = row["response"]["body"]
        outcome = body.get("choices") or body["error"]
        found.append((row["custom_id"], row["response"]["status_code"], json.dumps(outcome)))
    return found


async def output(http: httpx.AsyncClient, batch: dict) -> tuple[list[tuple], list[tuple]]:
    assert batch["status"] == "completed", batch
    texts = [
        (await http.get(f"/v1/files/{batch[name]}/content")).text
        for name in ("output_file_id", "error_file_id")
    ]
    return facts(texts[0]), facts(texts[1])


async def run_with_kills(target: str, folder: Path, kills: list[int]) -> tuple:
    """The output of a batch whose gateway is killed at each of these row counts."""
    flags = {"store.directory": folder, "batches.lease_seconds": 0.5, "batches.max_in_flight": 3}
    batch_id = ""
    for rows in [*kills, LINES + 1]:
        async with gateway_process(target, **flags) as (process, http):
            await stored(http)
            batch_id = batch_id or await create(http)
            batch = await batch_when(http, batch_id, rows)
            if rows > LINES:
                return await output(http, batch)
            process.kill()
            await process.wait()
    raise AssertionError


async def check(folder: Path, kills: list[int]) -> None:
    fakes = FakeBackends()
    await fakes.start()
    fakes.llm.script = LlmScript(delay=0.003)
    try:
        quiet = await run_with_kills(fakes.target, folder / "quiet", [])
        ids = [row[0] for part in quiet for row in part]
        assert sorted(ids, key=int) == [str(number) for number in range(LINES)]
        assert [int(row[0]) for row in quiet[0]] == sorted(int(row[0]) for row in quiet[0])
        assert await run_with_kills(fakes.target, folder / "killed", kills) == quiet
    finally:
        await fakes.stop()


@pytest.mark.timeout(120)
async def test_one_kill(tmp_path: Path) -> None:
    await check(tmp_path, [random.randrange(1, LINES)])


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_twenty_kills(tmp_path: Path) -> None:
    await check(tmp_path, sorted(random.sample(range(1, LINES), 20)))
