"""/internal/authorize: what the edge asks before it passes a call by the gateway."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from gateway_bench import GatewayBench

pytestmark = pytest.mark.asyncio(loop_scope="module")

LLM = "/internal/authorize/antiphon.llm.v1.LlmService/Generate"
VOICE = "/internal/authorize/antiphon.vocoder.v1.VocoderService/StreamSpeech"
LOAD = "/internal/authorize/antiphon.llm.v1.LlmService/LoadAdapter"
ADMIN = "/internal/authorize/v1/admin/fleet"
KEYS = {
    "talker": ("acme", ["inference"]),
    "speaker": ("acme", ["audio"]),
    "operator": ("ops", ["admin", "tenant.assume", "inference"]),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keyed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayBench]:
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text(
        "\n".join(
            f'[[keys]]\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n'
            f'tenant = "{tenant}"\nscopes = {scopes}\n'
            for key, (tenant, scopes) in KEYS.items()
        ),
        encoding="utf-8",
    )
    made = GatewayBench(identity={"keys_file": str(file)})
    await made.start()
    yield made
    await made.stop()


@pytest.mark.parametrize(
    ("key", "path", "status"),
    [
        ("talker", LLM, 200),
        ("talker", VOICE, 403),
        ("talker", ADMIN, 403),
        ("talker", LOAD, 403),
        ("operator", LOAD, 200),
        ("speaker", VOICE, 200),
        ("speaker", LLM, 403),
        ("operator", ADMIN, 200),
        ("operator", VOICE, 403),
        ("stranger", LLM, 401),
        ("", LLM, 401),
    ],
)
async def test_scopes_are_those_of_the_call(
    keyed: GatewayBench, key: str, path: str, status: int
) -> None:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    response = await keyed.http.post(path, headers=headers)
    assert response.status_code == status
    if status == 200:
        assert response.headers["x-antiphon-tenant"] == KEYS[key][0]
    else:
        assert "x-antiphon-tenant" not in response.headers


async def test_a_tenant_is_assumed_with_the_scope_only(keyed: GatewayBench) -> None:
    claim = {"x-antiphon-tenant": "acme"}
    operator = {"authorization": "Bearer operator"}
    allowed = await keyed.http.post(LLM, headers=operator | claim)
    assert allowed.headers["x-antiphon-tenant"] == "acme"
    talker = {"authorization": "Bearer talker", "x-antiphon-tenant": "rival"}
    assert (await keyed.http.post(LLM, headers=talker)).status_code == 403


async def test_without_credentials_administration_stays_closed(bench: GatewayBench) -> None:
    """And everybody is the same tenant, whatever they say."""
    response = await bench.http.post(LLM)
    assert (response.status_code, response.headers["x-antiphon-tenant"]) == (200, "")
    claim = {"x-antiphon-tenant": "rival"}
    assert (await bench.http.post(LLM, headers=claim)).status_code == 403
    assert (await bench.http.get(ADMIN)).status_code == 403
