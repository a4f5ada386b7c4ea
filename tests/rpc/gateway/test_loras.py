"""/v1/loras over real sockets: whose adapters are whose, and what may be named in requests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from antiphon_gateway.identity.keys import digest_of
from gateway_bench import GatewayBench

pytestmark = pytest.mark.asyncio(loop_scope="module")

USER = ["inference", "loras.write"]
KEYS = {
    "red": {"tenant": "red", "scopes": USER},
    "reader": {"tenant": "red", "scopes": ["inference"]},
    "blue": {"tenant": "blue", "scopes": USER},
    "operator": {"tenant": "ops", "scopes": [*USER, "admin"]},
    "narrow": {"tenant": "red", "scopes": USER, "models": ["base-model"]},
}


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    lines = []
    for name, grant in KEYS.items():
        lines += ["[[keys]]", f'sha256 = "{digest_of(name)}"', f'name = "{name}"']
        lines += [f"{field} = {json.dumps(value)}" for field, value in grant.items()]
    path.write_text("\n".join(lines))
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keyed(keys_file: Path) -> AsyncIterator[GatewayBench]:
    made = GatewayBench(identity={"keys_file": str(keys_file)})
    await made.start()
    yield made
    await made.stop()


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def empty(keyed: GatewayBench) -> None:
    keyed.fakes.llm.adapters.clear()
    member = keyed.backends.llm.pool.members[0]
    member.served = await member.client.list_models()


class Caller:
    """One key's requests."""

    def __init__(self, bench: GatewayBench, key: str) -> None:
        self._bench = bench
        self._headers = {"authorization": f"Bearer {key}"}

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        answer = await self._bench.http.request(method, path, json=body, headers=self._headers)
        return answer.status_code, answer.json()

    async def load(self, name: str, path: str = "good", **fields: Any) -> tuple[int, Any]:
        body = {"name": name, "path": path, "base_model": "small", **fields}
        return await self.ask("POST", "/v1/loras", body)

    async def names(self) -> list[str]:
        status, listed = await self.ask("GET", "/v1/loras")
        assert status == 200
        return [item["id"] for item in listed["data"]]

    async def chat(self, **fields: Any) -> tuple[int, str]:
        """The status, and the model that the service was asked for, or the error's code."""
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **fields}
        status, answer = await self.ask("POST", "/v1/chat/completions", body)
        if status != 200:
            return status, answer["error"]["code"]
        return status, self._bench.fakes.llm.starts[-1].request.model


async def test_an_adapter_is_loaded_named_listed_and_unloaded(keyed: GatewayBench) -> None:
    red = Caller(keyed, "red")
    status, lora = await red.load("poet")
    assert (status, lora) == (200, {
        "id": "poet", "base_model": "org/small-model", "created_at": 1_700_000_002,
        "shared": False, "object": "lora",
    })  # fmt: skip
    assert await red.names() == ["poet"]
    assert await red.ask("GET", "/v1/loras/poet") == (200, lora)
    for fields in (
        {"model": "poet"}, {"model": "org/small-model:poet"}, {"model": "small:poet"},
        {"model": "small", "lora": "poet"}, {"lora": "poet"}, {"model": "default", "lora": "poet"},
    ):  # fmt: skip
        assert await red.chat(**fields) == (200, "poet"), fields
    assert await red.chat(model="small") == (200, "org/small-model")
    assert await red.chat(model="base-model", lora="poet") == (404, "model_not_found")
    models = (await red.ask("GET", "/v1/models"))[1]["data"]
    assert next(model["parent"] for model in models if model["id"] == "poet") == "org/small-model"
    assert (await red.ask("GET", "/v1/models/org/small-model:poet"))[1]["id"] == "poet"
    assert await red.ask("DELETE", "/v1/loras/poet") == (
        200, {"id": "poet", "deleted": True, "object": "lora"},
    )  # fmt: skip
    assert await red.names() == []
    assert await red.chat(model="poet") == (404, "model_not_found")
    assert (await red.ask("DELETE", "/v1/loras/poet"))[0] == 404


async def test_another_tenant_sees_and_touches_nothing(keyed: GatewayBench) -> None:
    red, blue = Caller(keyed, "red"), Caller(keyed, "blue")
    await red.load("secret")
    assert await blue.names() == []
    for method in ("GET", "DELETE"):
        status, answer = await blue.ask(method, "/v1/loras/secret")
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
    status, answer = await blue.ask("POST", "/v1/chat/completions",
                                    {"model": "secret", "messages": []})  # fmt: skip
    assert status in (400, 404)
    assert await blue.chat(model="secret") == (404, "model_not_found")
    for listed in ("/v1/models", "/v1/loras"):
        assert "secret" not in json.dumps((await blue.ask("GET", listed))[1])
    assert (await blue.load("secret"))[0] == 200
    assert await red.chat(model="secret") == await blue.chat(model="secret") == (200, "secret")
    await blue.ask("DELETE", "/v1/loras/secret")
    assert await red.names() == ["secret"]


async def test_what_is_everybodys_is_the_operators(keyed: GatewayBench) -> None:
    red, operator = Caller(keyed, "red"), Caller(keyed, "operator")
    status, answer = await red.load("house", shared=True)
    assert (status, answer["error"]["code"]) == (403, "insufficient_scope")
    assert (await operator.load("house", shared=True))[1]["shared"] is True
    assert await red.names() == await Caller(keyed, "blue").names() == ["house"]
    assert await red.chat(model="house") == (200, "house")
    assert (await red.ask("DELETE", "/v1/loras/house"))[0] == 403
    # A tenant's own goes before that of all, in lists, requests and deletions.
    assert (await red.load("house"))[1]["shared"] is False
    assert [m["shared"] for m in (await red.ask("GET", "/v1/loras"))[1]["data"]] == [False]
    assert (await red.ask("DELETE", "/v1/loras/house"))[0] == 200
    assert (await operator.ask("DELETE", "/v1/loras/house"))[0] == 200
    assert await red.names() == []


async def test_scopes_and_allow_lists(keyed: GatewayBench) -> None:
    reader, narrow = Caller(keyed, "reader"), Caller(keyed, "narrow")
    status, answer = await reader.load("poet")
    assert (status, answer["error"]["code"]) == (403, "insufficient_scope")
    assert "loras.write" in answer["error"]["message"]
    await Caller(keyed, "red").load("poet")
    assert await reader.names() == ["poet"]
    assert (await reader.ask("DELETE", "/v1/loras/poet"))[0] == 403
    assert await narrow.names() == []
    assert await narrow.chat(model="poet") == (404, "model_not_found")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "name"),
        ({"name": "x"}, 400, "path"),
        ({"name": "a b", "path": "good"}, 400, "name"),
        ({"name": "x" * 65, "path": "good"}, 400, "name"),
        ({"name": "../x", "path": "good"}, 400, "name"),
        ({"name": "x", "path": ""}, 400, "path"),
        ({"name": "x", "path": "../../etc", "base_model": "small"}, 400, "path"),
        ({"name": "x", "path": "good"}, 400, "base_model"),
        ({"name": "x", "path": "good", "base_model": "nobody"}, 404, "model"),
        ({"name": "x", "path": "good", "shared": "yes"}, 400, "shared"),
    ],
)
async def test_bad_requests_name_the_field(
    keyed: GatewayBench, body: dict[str, Any], status: int, param: str
) -> None:
    found, answer = await Caller(keyed, "red").ask("POST", "/v1/loras", body)
    assert (found, answer["error"]["param"]) == (status, param)
    assert keyed.fakes.llm.adapters == []


async def test_conflicts_are_409(keyed: GatewayBench) -> None:
    red = Caller(keyed, "red")
    await red.load("busy")
    for answer in (await red.load("busy"), await red.ask("DELETE", "/v1/loras/busy")):
        assert (answer[0], answer[1]["error"]["code"]) == (409, "conflict")
    assert await red.names() == ["busy"]


async def test_methods_and_paths(keyed: GatewayBench) -> None:
    red = Caller(keyed, "red")
    assert (await red.ask("PUT", "/v1/loras", {}))[0] == 405
    assert (await red.ask("POST", "/v1/loras/x", {}))[0] == 405
    assert (await red.ask("GET", "/v1/loras/a/b"))[0] == 404
