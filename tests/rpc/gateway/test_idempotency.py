"""Idempotency-Key over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from antiphon_core.errors import Internal
from antiphon_gateway.identity.keys import digest_of
from fake_backends import LlmScript
from gateway_bench import GatewayBench
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

HI = [{"role": "user", "content": "Hi"}]
KEYS = "\n".join(
    f'[[keys]]\nsha256 = "{digest_of(name)}"\ntenant = "{tenant}"'
    for name, tenant in (("one", "a"), ("same tenant", "a"), ("two", "b"))
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("idempotency")
    (path / "keys.toml").write_text(KEYS)
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_kept(folder: Path) -> AsyncIterator[GatewayBench]:
    made = GatewayBench(
        store={"directory": str(folder / "store")},
        identity={"keys_file": str(folder / "keys.toml")},
    )
    await made.start()
    await until(lambda: made.gateway.storage.store.is_available)
    yield made
    await made.stop()


@pytest.fixture
def kept(module_kept: GatewayBench) -> GatewayBench:
    module_kept.fakes.llm.script = LlmScript()
    module_kept.fakes.llm.calls.requests.clear()
    return module_kept


async def chat(bench: GatewayBench, name: str, key: str = "one", **body: object) -> httpx.Response:
    return await bench.http.post(
        "/v1/chat/completions",
        json={"model": "small", "messages": HI, **body},
        headers={"authorization": f"Bearer {key}", "idempotency-key": name},
    )


def calls(bench: GatewayBench) -> int:
    return len(bench.fakes.llm.calls.requests)


async def test_the_second_gets_the_answer_of_the_first(kept: GatewayBench) -> None:
    first = await chat(kept, "n1", unknown=1)
    second = await chat(kept, "n1", unknown=1)
    assert first.status_code == second.status_code == 200
    assert first.content == second.content and calls(kept) == 1
    assert second.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    assert first.headers["x-antiphon-ignored"] == second.headers["x-antiphon-ignored"]
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


async def test_another_body_is_a_permanent_conflict(kept: GatewayBench) -> None:
    await chat(kept, "n2")
    refused = await chat(kept, "n2", temperature=1)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "idempotency_mismatch")
    assert refused.headers["x-should-retry"] == "false"


async def test_tenant_key_and_route_are_apart(kept: GatewayBench) -> None:
    await chat(kept, "n3")
    for key in ("same tenant", "two"):
        assert "idempotent-replayed" not in (await chat(kept, "n3", key)).headers
    body = {"model": "base-model", "prompt": "a"}
    headers = {"authorization": "Bearer one", "idempotency-key": "n3"}
    other = await kept.http.post("/v1/completions", json=body, headers=headers)
    assert other.status_code == 200 and "idempotent-replayed" not in other.headers


async def test_while_the_first_runs(kept: GatewayBench) -> None:
    kept.fakes.llm.script = LlmScript(delay=0.5)
    first = asyncio.create_task(chat(kept, "n4"))
    await until(lambda: calls(kept) == 1)
    refused = await chat(kept, "n4")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert "x-should-retry" not in refused.headers
    assert (await first).status_code == 200
    assert (await chat(kept, "n4")).headers["idempotent-replayed"] == "true"


async def test_failures_and_refusals_are_not_kept(kept: GatewayBench) -> None:
    kept.fakes.llm.script = LlmScript(fail_before=Internal("broken"))
    assert (await chat(kept, "n5")).status_code == 500
    kept.fakes.llm.script = LlmScript()
    assert (await chat(kept, "n5")).status_code == 200
    assert (await chat(kept, "n6", temperature=9)).status_code == 400
    assert (await chat(kept, "n6")).status_code == 200


async def test_who_left_may_come_back(kept: GatewayBench) -> None:
    kept.fakes.llm.script = LlmScript(delay=0.2)
    task = asyncio.create_task(chat(kept, "n7"))
    await until(lambda: calls(kept) == 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: kept.fakes.llm.calls.running == 0)
    kept.fakes.llm.script = LlmScript()
    for _ in range(200):
        if (await chat(kept, "n7")).status_code == 200:
            break
        await asyncio.sleep(0.01)
    else:
        raise AssertionError("the note of the abandoned request stayed")


async def test_streams_are_not_kept(kept: GatewayBench) -> None:
    for _ in range(2):
        answer = await chat(kept, "n8", stream=True)
        assert "[DONE]" in answer.text
    assert calls(kept) == 2


async def test_batches_are_made_once(kept: GatewayBench) -> None:
    headers = {"authorization": "Bearer one"}
    file = await kept.http.post(
        "/v1/files", files={"file": ("a", b"{}")}, data={"purpose": "batch"}, headers=headers
    )
    body = {
        "input_file_id": file.json()["id"],
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    }
    headers["idempotency-key"] = "n9"
    made = [(await kept.http.post("/v1/batches", json=body, headers=headers)) for _ in range(2)]
    assert made[0].json()["id"] == made[1].json()["id"]


@pytest.mark.parametrize("name", ["a b", "x" * 256, "\u00e9"])
async def test_malformed_names(kept: GatewayBench, name: str) -> None:
    refused = await kept.http.post(
        "/v1/chat/completions",
        json={"model": "small", "messages": HI},
        headers=[
            (b"authorization", b"Bearer one"),
            (b"idempotency-key", name.encode("latin-1")),
        ],
    )
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "idempotency-key")


async def test_without_a_store_the_header_is_refused() -> None:
    bench = GatewayBench()
    await bench.start()
    try:
        refused = await chat(bench, "n")
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            400,
            "unsupported_parameter",
        )
    finally:
        await bench.stop()
