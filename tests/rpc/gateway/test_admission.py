"""The in-flight bound of what the backends advertise: fast, and batch work gives way."""

from __future__ import annotations

import asyncio

import httpx
from fake_backends import LlmScript
from gateway_bench import GatewayBench
from support.waiting import until

BATCH = {"x-antiphon-priority": "batch"}
BODY = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}


async def post(bench: GatewayBench, **headers: str) -> httpx.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await bench.http.post("/v1/chat/completions", json=BODY, headers=sent)


async def test_no_more_than_the_backends_hold() -> None:
    bench = GatewayBench()
    bench.fakes.limits.update(max_rows=2, queue_limit=2)
    await bench.start()
    try:
        assert bench.backends.llm.pool.in_flight_limit == 4
        bench.fakes.llm.script = LlmScript(delay=0.1)
        batch = [asyncio.create_task(post(bench, **BATCH)) for _ in range(2)]
        await until(lambda: bench.fakes.llm.calls.running == 2)
        refused = await post(bench, **BATCH)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "capacity_exceeded")
        assert refused.headers["retry-after"] == "1"
        running = [asyncio.create_task(post(bench)) for _ in range(2)]
        await until(lambda: bench.fakes.llm.calls.running == 4)
        full = await post(bench)
        assert (full.status_code, full.json()["error"]["code"]) == (429, "capacity_exceeded")
        assert "4" in full.json()["error"]["message"]
        assert (await bench.http.get("/health")).status_code == 200
        assert (await bench.http.get("/v1/models")).status_code == 200
        assert [(await task).status_code for task in (*batch, *running)] == [200] * 4
        assert (await post(bench)).status_code == 200
        assert bench.fakes.llm.calls.running == 0
    finally:
        await bench.stop()


async def test_a_bound_is_at_least_twice_what_runs() -> None:
    bench = GatewayBench()
    bench.fakes.limits.update(max_rows=8, queue_limit=1)
    await bench.start()
    try:
        assert bench.backends.llm.pool.in_flight_limit == 16
    finally:
        await bench.stop()


async def test_without_an_advertised_limit_there_is_no_bound() -> None:
    bench = GatewayBench()
    await bench.start()
    try:
        assert bench.backends.llm.pool.in_flight_limit is None
        answers = await asyncio.gather(*(post(bench) for _ in range(40)))
        assert {answer.status_code for answer in answers} == {200}
    finally:
        await bench.stop()
