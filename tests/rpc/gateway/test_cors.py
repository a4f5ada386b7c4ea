"""Cross-origin requests: off by default, an allow-list, never everybody with credentials."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from antiphon_core.config import ConfigError, load_settings
from antiphon_gateway.config import GatewaySettings
from gateway_bench import GatewayBench

pytestmark = pytest.mark.asyncio(loop_scope="module")

APP = "https://app.example"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def listed() -> AsyncIterator[GatewayBench]:
    made = GatewayBench(
        cors={"allowed_origins": [APP], "allow_credentials": True},
        api_keys=["0" * 64],
    )
    await made.start()
    yield made
    await made.stop()


async def test_off_by_default() -> None:
    bench = GatewayBench()
    await bench.start()
    try:
        answer = await bench.http.get("/v1/models", headers={"origin": APP})
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("access-control")]
        preflight = await bench.http.options("/v1/models", headers={"origin": APP, **PREFLIGHT})
        assert preflight.status_code == 405
    finally:
        await bench.stop()


async def test_a_preflight_needs_no_key(listed: GatewayBench) -> None:
    answer = await listed.http.options("/v1/chat/completions", headers={"origin": APP, **PREFLIGHT})
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == APP
    assert answer.headers["access-control-allow-credentials"] == "true"
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"]
    assert allowed == PREFLIGHT["access-control-request-headers"]
    assert answer.headers["vary"] == "Origin" and "x-request-id" in answer.headers


async def test_errors_are_readable_by_listed_pages_only(listed: GatewayBench) -> None:
    refused = await listed.http.get("/v1/models", headers={"origin": APP})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == APP
    assert "x-request-id" in refused.headers["access-control-expose-headers"]
    for origin in ("https://app.example.evil", "http://app.example", "null"):
        other = await listed.http.get("/v1/models", headers={"origin": origin})
        assert "access-control-allow-origin" not in other.headers
        assert other.headers["vary"] == "Origin"
        preflight = await listed.http.options("/v1/models", headers={"origin": origin, **PREFLIGHT})
        assert "access-control-allow-origin" not in preflight.headers


async def test_everybody_without_credentials() -> None:
    bench = GatewayBench(cors={"allowed_origins": ["*"]})
    await bench.start()
    try:
        answer = await bench.http.get("/v1/models", headers={"origin": APP})
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers
    finally:
        await bench.stop()


async def test_never_everybody_with_credentials() -> None:
    flags = ("--cors.allowed-origins", '["*"]', "--cors.allow-credentials")
    with pytest.raises(ConfigError, match="allow_credentials"):
        load_settings(GatewaySettings, section="gateway", argv=flags, environ={})
