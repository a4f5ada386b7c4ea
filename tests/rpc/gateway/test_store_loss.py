"""A gateway that loses its PostgreSQL goes on with what it knows, says so, and comes back whole."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from antiphon_gateway.identity import key_sources
from antiphon_gateway.identity.keys import KeyRecord, digest_of
from antiphon_gateway.quota.limits import QuotaLimits
from antiphon_gateway.quota.usage import today
from fake_backends import LlmScript
from gateway_bench import GatewayBench
from support.postgres import binaries, running_server
from support.waiting import until

LINES = 60
HI = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}


def headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def chat(bench: GatewayBench, key: str) -> int:
    answer = await bench.http.post("/v1/chat/completions", json=HI, headers=headers(key))
    return answer.status_code


async def start_batch(bench: GatewayBench) -> str:
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
    upload = await bench.http.post(
        "/v1/files",
        files={"file": ("a", content)},
        data={"purpose": "batch"},
        headers=headers("known"),
    )
    body = {
        "input_file_id": upload.json()["id"],
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    }
    made = await bench.http.post("/v1/batches", json=body, headers=headers("known"))
    return made.json()["id"]


@pytest.mark.timeout(120)
async def test_loss_and_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with running_server() as server:
        bench = GatewayBench(
            store={"directory": str(tmp_path), "url": server.url, "timeout_seconds": 2.0},
            identity={"stored_keys": True},
            batches={"lease_seconds": 1.0, "poll_seconds": 0.05, "max_in_flight": 2},
        )
        await bench.start()
        storage = bench.gateway.storage
        await until(lambda: storage.store.is_available)
        limits = QuotaLimits(requests_per_second=1, burst_seconds=30, concurrency=20)
        for key in ("known", "unknown"):
            await storage.keys.add(KeyRecord(digest_of(key), "", "t", limits=limits, created_at=1))
        await storage.keys.add(KeyRecord(digest_of("free"), "", "t", created_at=1))
        try:
            assert await chat(bench, "known") == 200 == await chat(bench, "free")
            bench.fakes.llm.script = LlmScript(delay=0.01)
            batch_id = await start_batch(bench)
            await until(lambda: len(bench.fakes.llm.starts) > 6)

            server.stop()
            monkeypatch.setattr(key_sources, "FRESH_SECONDS", 0.0)
            async with asyncio.timeout(10):
                while (status := await chat(bench, "known")) != 200:
                    # A known key; the rate is this process's own now, what others saved is gone.
                    assert status == 429
                    await asyncio.sleep(0.1)
            assert await chat(bench, "unknown") == 503
            files = await bench.http.get("/v1/files", headers=headers("free"))
            assert (files.status_code, files.json()["error"]["code"]) == (503, "no_backend")
            ready = await bench.http.get("/health/ready")
            assert ready.json()["reasons"] == ["store_unavailable"]
            assert (await bench.http.get("/health")).status_code == 200
            statuses = [await chat(bench, "known") for _ in range(40)]
            assert 429 in statuses and set(statuses) <= {200, 429}

            server.start()
            await until(lambda: storage.store.is_available)
            monkeypatch.undo()
            batch: dict = {}
            deadline = time.monotonic() + 60
            while batch.get("status") != "completed":
                assert time.monotonic() < deadline, batch
                batch_now = await storage.batches.get("t", batch_id)
                batch = {"status": batch_now.status, "record": batch_now.record}
                await asyncio.sleep(0.05)
            output = await storage.files.get("t", batch["record"].output_file_id)
            text = b"".join([part async for part in storage.store.blobs.chunks(output.blob)])
            ids = [json.loads(line)["custom_id"] for line in text.splitlines()]
            assert ids == [str(number) for number in range(LINES)]
            await bench.gateway.quotas.sync()
            spent = await storage.quotas.used_on(today(), tenant="t", key_id=None)
            assert spent.requests >= LINES + statuses.count(200) + 3
        finally:
            await bench.stop()
