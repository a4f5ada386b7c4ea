"""Keys, scopes, tenants and priorities of requests over real sockets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from antiphon_core import metrics
from antiphon_gateway.identity.keys import digest_of
from gateway_bench import GatewayBench
from openai import AsyncOpenAI, PermissionDeniedError
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

pytestmark = pytest.mark.asyncio(loop_scope="module")

HI = [{"role": "user", "content": "Hi"}]
KEYS = {
    "full": {"tenant": "acme"},
    "files-only": {"tenant": "acme", "scopes": ["files"]},
    "narrow": {"models": ["small"], "voices": ["ann"]},
    "slow": {"priority": "batch"},
    "strict": {"strict_fields": True},
    "one socket": {"limits": {"concurrency": 1}},
    "root": {"tenant": "ops", "scopes": ["inference", "admin", "tenant.assume"]},
}


def keys_toml() -> str:
    lines = []
    for name, grant in KEYS.items():
        lines += ["[[keys]]", f'sha256 = "{digest_of(name)}"', f'name = "{name}"']
        for field, value in grant.items():
            pairs = value.items() if isinstance(value, dict) else [("", value)]
            lines += [f"{field}{'.' * bool(n)}{n} = {json.dumps(v)}" for n, v in pairs]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(keys_toml())
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keyed(keys_file: Path) -> AsyncIterator[GatewayBench]:
    made = GatewayBench(identity={"keys_file": str(keys_file), "trusted_hops": 1})
    await made.start()
    yield made
    await made.stop()


def bearer(key: str, **headers: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }


async def chat(bench: GatewayBench, key: str, body: dict | None = None, **headers: str):
    return await bench.http.post(
        "/v1/chat/completions",
        json={"model": "small", "messages": HI, **(body or {})},
        headers=bearer(key, **headers),
    )


async def test_who_lacks_a_scope_is_refused_and_told_which(keyed: GatewayBench) -> None:
    labels = {"layer": "identity", "reason": "PERMISSION_DENIED", "status": "403"}
    before = metrics.value("http_refusals_total", **labels) or 0
    refused = await chat(keyed, "files-only")
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "insufficient_scope"
    assert "inference" in refused.json()["error"]["message"]
    assert metrics.value("http_refusals_total", **labels) == before + 1
    models = await keyed.http.get("/v1/models", headers=bearer("files-only"))
    assert models.status_code == 200
    admin = await keyed.http.get("/v1/admin/fleet", headers=bearer("full"))
    assert admin.status_code == 403
    assert (await keyed.http.get("/v1/admin/fleet", headers=bearer("root"))).status_code == 404


async def test_administration_is_closed_in_open_mode() -> None:
    bench = GatewayBench()
    await bench.start()
    try:
        assert (await bench.http.get("/v1/admin/fleet")).status_code == 403
        assert (await bench.chat()).status_code == 200
    finally:
        await bench.stop()


async def test_tenant_and_priority_reach_the_service(keyed: GatewayBench) -> None:
    cases = [
        ("full", {}, {}, ("acme", False)),
        ("full", {"priority": "batch"}, {}, ("acme", True)),
        ("full", {"service_tier": "flex"}, {}, ("acme", True)),
        ("full", {"service_tier": "auto"}, {}, ("acme", False)),
        ("full", {}, {"x_antiphon_priority": "batch"}, ("acme", True)),
        ("slow", {"priority": "interactive"}, {}, ("", True)),
        ("slow", {}, {"x_antiphon_priority": "interactive"}, ("", True)),
        ("root", {}, {"x_antiphon_tenant": "acme"}, ("acme", False)),
        ("narrow", {}, {}, ("", False)),
    ]
    for key, body, headers, expected in cases:
        assert (await chat(keyed, key, body, **headers)).status_code == 200
        start = keyed.fakes.llm.starts[-1]
        assert (start.tenant, start.batch) == expected, (key, body, headers)


async def test_nobody_becomes_another_tenant_by_a_header(keyed: GatewayBench) -> None:
    assert (await chat(keyed, "full", x_antiphon_tenant="other")).status_code == 403
    assert (await chat(keyed, "root", x_antiphon_tenant="no/such")).status_code == 400
    assert (await chat(keyed, "full", x_antiphon_priority="urgent")).status_code == 400


async def test_allow_lists_hide_what_may_not_be_used(keyed: GatewayBench) -> None:
    assert (await chat(keyed, "narrow")).status_code == 200
    assert (await chat(keyed, "narrow", {"model": ""})).status_code == 200
    refused = await chat(keyed, "narrow", {"model": "base-model"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    assert "org/small-model" in refused.json()["error"]["message"]
    assert "base-model" not in refused.json()["error"]["message"].replace("'base-model'", "")
    listed = (await keyed.http.get("/v1/models", headers=bearer("narrow"))).json()["data"]
    assert not {"base-model"} & {model["id"] for model in listed}
    voices = (await keyed.http.get("/v1/audio/voices", headers=bearer("narrow"))).json()["data"]
    assert [voice["id"] for voice in voices] == ["ann"]


@pytest.mark.parametrize(("voice", "status"), [("ann", 200), ("joe", 400), ("alloy", 200)])
async def test_voices_of_a_key(keyed: GatewayBench, voice: str, status: int) -> None:
    body = {"model": "tts-1", "voice": voice, "input": "Hello."}
    answer = await keyed.http.post("/v1/audio/speech", json=body, headers=bearer("narrow"))
    assert answer.status_code == status
    if status == 200:
        assert keyed.fakes.vocoder.calls.requests[-1].voice == "ann"


async def test_strict_keys_refuse_unknown_fields(keyed: GatewayBench) -> None:
    assert (await chat(keyed, "full", {"whatever": 1})).status_code == 200
    assert (await chat(keyed, "strict", {"whatever": 1})).status_code == 400


async def test_logs_tell_the_client_and_no_key(
    keyed: GatewayBench, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    refused = await chat(keyed, "sk-very-secret", x_forwarded_for="6.6.6.6, 7.7.7.7")
    assert refused.status_code == 401
    captured = capfd.readouterr()
    assert "sk-very-secret" not in captured.err + captured.out + refused.text
    assert "7.7.7.7" in captured.err + captured.out
    assert "6.6.6.6" not in captured.err + captured.out


def replace_in(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


async def becomes(bench: GatewayBench, key: str, status: int) -> None:
    deadline = time.monotonic() + 20
    while (await chat(bench, key)).status_code != status:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def test_a_removed_key_ends_within_five_seconds(keyed: GatewayBench, keys_file: Path) -> None:
    assert (await chat(keyed, "full")).status_code == 200
    replace_in(keys_file, digest_of("full"), digest_of("changed"))
    await becomes(keyed, "full", 401)
    replace_in(keys_file, digest_of("changed"), digest_of("full"))
    await becomes(keyed, "full", 200)


async def test_the_sdk_and_the_other_header(keyed: GatewayBench) -> None:
    url = keyed.url + "/v1"
    async with AsyncOpenAI(base_url=url, api_key="full", max_retries=0) as client:
        await client.chat.completions.create(model="small", messages=HI, service_tier="flex")
        assert keyed.fakes.llm.starts[-1].batch
    async with AsyncOpenAI(base_url=url, api_key="files-only", max_retries=0) as client:
        with pytest.raises(PermissionDeniedError):
            await client.chat.completions.create(model="small", messages=HI)
    answer = await keyed.http.get("/v1/models", headers={"api-key": "full"})
    assert answer.status_code == 200


async def test_sockets_are_admitted_as_requests_are(keyed: GatewayBench) -> None:
    url = keyed.url.replace("http", "ws") + "/v1/realtime?model=small"
    for key, status in (("nobody", 401), ("files-only", 403)):
        with pytest.raises(InvalidStatus) as refused:
            await connect(url, additional_headers=bearer(key))
        assert refused.value.response.status_code == status
    async with connect(url, additional_headers=bearer("one socket")) as first:
        assert json.loads(await first.recv())["type"] == "session.created"
        with pytest.raises(InvalidStatus) as second:
            await connect(url, additional_headers=bearer("one socket"))
        assert second.value.response.status_code == 429


async def test_a_client_secret_ends_with_its_key(keyed: GatewayBench, keys_file: Path) -> None:
    body = {"session": {"type": "realtime", "model": "small"}}
    made = await keyed.http.post("/v1/realtime/client_secrets", json=body, headers=bearer("strict"))
    secret = made.json()["value"]
    url = keyed.url.replace("http", "ws") + "/v1/realtime"
    async with connect(url, additional_headers=bearer(secret)) as socket:
        assert json.loads(await socket.recv())["type"] == "session.created"
    replace_in(keys_file, digest_of("strict"), digest_of("changed"))
    await becomes(keyed, "strict", 401)
    with pytest.raises(InvalidStatus) as refused:
        await connect(url, additional_headers=bearer(secret))
    assert refused.value.response.status_code == 401
    replace_in(keys_file, digest_of("changed"), digest_of("strict"))
    await becomes(keyed, "strict", 200)
