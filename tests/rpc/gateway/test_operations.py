"""Life of the gateway: before the backends, between them, with keys, and at the end."""

from __future__ import annotations

import asyncio
import hashlib

import httpx
import pytest
from antiphon_core import metrics
from antiphon_core.errors import FailedPrecondition
from antiphon_gateway.listener import HttpListener
from antiphon_gateway.routes.operations import operations_router
from fake_backends import FakeBackends, LlmScript
from gateway_bench import GatewayBench
from support.waiting import until


async def test_serves_before_its_backends_and_follows_them() -> None:
    bench = GatewayBench()
    bench.fakes.port = 1  # nobody listens there
    await bench.start(backends=False)
    try:
        assert (await bench.http.get("/health")).status_code == 200
        ready = await bench.http.get("/health/ready")
        assert (ready.status_code, ready.json()["reasons"]) == (503, ["starting"])
        refused = await bench.chat()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "starting")
        assert refused.headers["retry-after"] == "1"
        models = await bench.http.get("/v1/models")
        assert models.status_code == 503
    finally:
        await bench.stop()


async def test_booting_then_ready_then_lost_then_back() -> None:
    bench = GatewayBench()
    await bench.start(ready=False)
    try:
        await asyncio.sleep(0.1)
        refused = await bench.chat()
        assert refused.json()["error"]["code"] == "starting"
        assert "loading" in refused.json()["error"]["message"]
        bench.fakes.lifecycle.ready()
        await until(lambda: not bench.backends.missing)
        assert (await bench.http.get("/health/ready")).status_code == 200
        assert (await bench.chat()).status_code == 200
        await bench.fakes.stop()
        await until(lambda: bool(bench.backends.missing))
        ready = await bench.http.get("/health/ready")
        assert ready.json()["reasons"] == ["no_llm_backend", "no_vocoder_backend"]
        lost = await bench.chat()
        assert (lost.status_code, lost.json()["error"]["code"]) == (503, "no_backend")
        await bench.fakes.start()
        await until(lambda: not bench.backends.missing)
        assert (await bench.chat()).status_code == 200
    finally:
        await bench.stop()


async def test_draining_backend_is_said_to_drain() -> None:
    bench = GatewayBench()
    await bench.start()
    try:
        bench.fakes.lifecycle.draining()
        await until(lambda: "draining" in bench.backends.missing)
        assert (await bench.chat()).json()["error"]["code"] == "draining"
    finally:
        await bench.stop()


async def test_sleeping_backend_is_said_to_sleep_until_it_wakes() -> None:
    bench = GatewayBench()
    await bench.start()
    try:
        bench.fakes.lifecycle.asleep()
        await until(lambda: "asleep" in bench.backends.missing)
        refused = await bench.chat()
        assert refused.status_code == 503 and "wake it first" in refused.json()["error"]["message"]
        bench.fakes.lifecycle.awake()
        await until(lambda: not bench.backends.missing)
        assert (await bench.chat()).status_code == 200
    finally:
        await bench.stop()


async def test_stop_finishes_running_requests() -> None:
    bench = GatewayBench()
    await bench.start()
    bench.fakes.llm.script = LlmScript(delay=0.05)
    running = asyncio.create_task(bench.chat())
    await until(lambda: bench.fakes.llm.calls.running == 1)
    bench.lifecycle.draining()
    ready = await bench.http.get("/health/ready")
    assert (ready.status_code, ready.json()["reasons"]) == (503, ["draining"])
    await bench.listener.stop()
    assert (await running).status_code == 200
    with pytest.raises(httpx.ConnectError):
        async with httpx.AsyncClient() as client:
            await client.get(bench.url + "/health")
    await bench.stop()


async def test_keys_are_required_where_configured() -> None:
    digest = hashlib.sha256(b"sk-good").hexdigest()
    bench = GatewayBench(api_keys=[digest])
    await bench.start()
    try:
        absent = await bench.http.get("/v1/models")
        assert (absent.status_code, absent.json()["error"]["code"]) == (401, "invalid_api_key")
        assert absent.headers["www-authenticate"] == "Bearer"
        for path in ("/v1/models", "/v1/nothing", "/v1/chat/completions"):
            wrong = await bench.http.post(path, headers={"authorization": "Bearer sk-bad"})
            assert wrong.status_code == 401
            assert "sk-bad" not in wrong.text
        good = await bench.http.get("/v1/models", headers={"authorization": "Bearer sk-good"})
        assert good.status_code == 200
        assert (await bench.http.get("/health/ready")).status_code == 200
    finally:
        await bench.stop()


async def test_calls_through_egress_and_status_from_the_service() -> None:
    """The egress listener carries the calls; here a second backend stands for it."""
    egress = FakeBackends()
    await egress.start()
    bench = GatewayBench(egress_target=egress.target)
    await bench.start()
    try:
        assert (await bench.chat()).status_code == 200
        assert egress.llm.calls.requests
        assert not bench.fakes.llm.calls.requests
        bench.fakes.lifecycle.draining()
        await until(lambda: "draining" in bench.backends.missing)
        assert metrics.value("gateway_backends", service="llm", state="draining") == 1
        assert metrics.value("gateway_backends", service="llm", state="ready") == 0
    finally:
        await bench.stop()
        await egress.stop()


async def test_metrics_on_their_own_listener() -> None:
    bench = GatewayBench()
    await bench.start()
    operations = HttpListener(
        bench.gateway.operations(operations_router()),
        "127.0.0.1",
        0,
        setting="ops_port",
        grace_seconds=1.0,
    )
    port = await operations.start()
    try:
        await bench.chat()
        await bench.chat(model="gpt-9")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            pages = await asyncio.gather(*(client.get("/metrics") for _ in range(4)))
            assert (await client.get("/health/ready")).status_code == 200
            assert (await client.get("/v1/models")).status_code == 404
        text = pages[0].text
        assert all(page.status_code == 200 for page in pages)
        assert 'route="/v1/chat/completions"' in text
        assert 'reason="MODEL_NOT_FOUND"' in text
        assert 'antiphon_gateway_backends{service="llm",state="ready"} 1.0' in text
        assert (await bench.http.get("/metrics")).status_code == 404
    finally:
        await operations.stop()
        await bench.stop()


async def test_a_port_in_use_says_how_to_change_it() -> None:
    bench = GatewayBench()
    await bench.start(backends=False)
    try:
        second = HttpListener(
            bench.gateway, "127.0.0.1", bench.port, setting="port", grace_seconds=1.0
        )
        with pytest.raises(FailedPrecondition, match=r"already in use.*--port"):
            await second.start()
    finally:
        await bench.stop()


async def test_the_page_is_served() -> None:
    bench = GatewayBench()
    await bench.start(backends=False)
    try:
        page = await bench.http.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        again = await bench.http.get("/", headers={"if-none-match": page.headers["etag"]})
        assert again.status_code == 304
        assert (await bench.http.get("/../config.py")).status_code == 404
    finally:
        await bench.stop()
