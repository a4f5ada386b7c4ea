"""What the edge does to bytes: upgrades, frames, bodies, long calls, gRPC-Web, credentials, TLS."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import httpx
import pytest
import pytest_asyncio
import websockets
from antiphon.admin.v1 import admin_service_pb2, admin_service_pb2_grpc
from antiphon.llm.v1 import generate_pb2, llm_service_pb2_grpc
from antiphon.vocoder.v1 import vocoder_service_pb2 as vocoder
from antiphon.vocoder.v1 import vocoder_service_pb2_grpc
from antiphon_cli.edge.render import Target
from support.edge import Stack, channel, ports, stack, start
from support.http2 import websocket_over_http2

pytestmark = pytest.mark.asyncio(loop_scope="module")

USER, ADMIN = "a-user's-key", "an-administrator's-key"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """One gateway that asks for keys, two replicas of which one is nearly full, and admin."""
    folder = tmp_path_factory.mktemp("transport")
    (admin_port,) = ports(1)
    keys = "\n".join(
        f'[[keys]]\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n'
        f'tenant = "{tenant}"\nscopes = {scopes}\n'
        for key, tenant, scopes in (
            (USER, "acme", ["inference", "audio", "realtime"]),
            (ADMIN, "ops", ["admin"]),
        )
    )
    (folder / "keys.toml").write_text(keys, encoding="utf-8")
    flags = ("--identity.keys-file", str(folder / "keys.toml"))
    async with stack(
        folder,
        replicas={"a": {"slot_utilization": 0.05}, "b": {"slot_utilization": 0.95}},
        gateways={"one": flags},
        admin_service=(Target("127.0.0.1", admin_port),),
    ) as made:
        node = f"llm=127.0.0.1:{made.replica_ports['a']}"
        made.children["admin"] = await start(
            folder / "admin.log",
            *(sys.executable, "-m", "antiphon_admin", "--bind", f"127.0.0.1:{admin_port}"),
            *("--http-bind", "127.0.0.1:0", "--replicas", node),
        )
        await made.proxy.wait_healthy("admin", {admin_port})
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def http(made: Stack) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {USER}"}
    async with httpx.AsyncClient(base_url=made.proxy.url, headers=headers, timeout=30) as client:
        yield client


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


async def test_a_websocket_is_upgraded_over_http1(made: Stack) -> None:
    address = made.proxy.url.replace("http", "ws") + "/v1/realtime?model=m"
    headers = {"authorization": f"Bearer {USER}"}
    async with websockets.connect(address, additional_headers=headers) as socket:
        await updated(socket.recv, socket.send)


async def test_a_websocket_is_upgraded_over_http2(made: Stack) -> None:
    path, edge = "/v1/realtime?model=m", made.proxy.plan.edge
    assert edge is not None
    headers = {"authorization": f"Bearer {USER}"}
    async with websocket_over_http2(edge.port, path, headers) as socket:
        await updated(socket.receive, socket.send)


async def updated(
    receive: Callable[[], Awaitable[str | bytes]], send: Callable[[str], Awaitable[None]]
) -> None:
    """One event each way."""
    assert json.loads(await receive())["type"] == "session.created"
    await send('{"type": "session.update", "session": {"type": "realtime"}}')
    kinds = []
    while "session.updated" not in kinds:
        kinds.append(json.loads(await asyncio.wait_for(receive(), 30))["type"])
        assert "error" not in kinds


async def test_what_only_the_inside_may_say_is_taken_off(made: Stack) -> None:
    claims = ("x-antiphon-affinity", "x-antiphon-endpoint", "x-antiphon-not-started")
    metadata = bearer(USER) + tuple((name, "1") for name in claims)
    async with channel(made.proxy.plan.edge) as calls:
        seen = await text_of(calls, "metadata", metadata)
    assert "x-antiphon-tenant=acme " in seen
    assert not any(name in seen for name in claims), seen


async def test_a_call_past_the_gateway_needs_credentials(made: Stack) -> None:
    async with channel(made.proxy.plan.edge) as calls:
        with pytest.raises(grpc.aio.AioRpcError) as without:
            await text_of(calls, "anonymous", ())
        with pytest.raises(grpc.aio.AioRpcError) as foreign:
            tenant = (("x-antiphon-tenant", "rival"),)
            await text_of(calls, "foreign", bearer(USER) + tenant)
        with pytest.raises(grpc.aio.AioRpcError) as lesser:
            await text_of(calls, "lesser", bearer(ADMIN))
    assert without.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert foreign.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert lesser.value.code() is grpc.StatusCode.PERMISSION_DENIED
    for prompt in ("anonymous", "foreign", "lesser"):
        assert not made.executions(prompt)


async def test_administration_is_json_for_administrators(
    made: Stack, http: httpx.AsyncClient
) -> None:
    refused = await http.get("/v1/admin/fleet")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_scope")
    admin = {"authorization": f"Bearer {ADMIN}"}
    deadline = time.monotonic() + 30
    while True:
        fleet = (await http.get("/v1/admin/fleet", headers=admin)).json()
        if fleet["ready"] or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.1)
    assert [replica["id"] for replica in fleet["replicas"]] == ["llm-0"]
    assert fleet["ready"] is True
    infos = await http.get("/v1/admin/fleet/info?selector.services=llm", headers=admin)
    assert infos.json()["infos"][0]["info"]["service"] == "replica"
    unnamed = await http.post("/v1/admin/fleet:drain", headers=admin, json={"reason": "test"})
    assert unnamed.status_code == 400
    assert unnamed.json()["details"][0]["metadata"]["field"] == "selector"
    assert (await http.get("/v1/admin/nothing", headers=admin)).status_code == 404
    unknown = await http.get("/v1/admin/fleet?no_such_field=1", headers=admin)
    assert unknown.status_code == 400


async def test_administration_is_no_grpc_service_of_the_edge(made: Stack) -> None:
    async with channel(made.proxy.plan.edge) as calls:
        stub = admin_service_pb2_grpc.AdminServiceStub(calls)
        with pytest.raises(grpc.aio.AioRpcError) as hidden:
            request = admin_service_pb2.GetFleetRequest()
            await stub.GetFleet(request, metadata=bearer(ADMIN))
    assert hidden.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("path", ["/internal/authorize/v1/models", "/metrics", "/%6detrics"])
async def test_inner_paths_are_hidden(http: httpx.AsyncClient, path: str) -> None:
    response = await http.get(path)
    assert response.status_code == 404
    assert response.json()["error"]["message"] == "not found"


async def test_browsers_call_by_grpc_web(made: Stack, http: httpx.AsyncClient) -> None:
    message = generate_pb2.GenerateRequest(text="from a browser", model="m").SerializeToString()
    response = await http.post(
        "/antiphon.llm.v1.LlmService/Generate",
        content=struct.pack(">BI", 0, len(message)) + message,
        headers={"content-type": "application/grpc-web+proto", "x-grpc-web": "1"},
    )
    assert response.headers["content-type"] == "application/grpc-web+proto"
    events, trailers, data = [], b"", response.content
    while data:
        kind, length = struct.unpack(">BI", data[:5])
        part, data = data[5 : 5 + length], data[5 + length :]
        if kind & 0x80:
            trailers = part
        else:
            events.append(generate_pb2.GenerateResponse.FromString(part).WhichOneof("event"))
    assert events == ["accepted", "delta", "finished", "completed"]
    assert b"grpc-status:0" in trailers.replace(b" ", b"")


async def test_speech_goes_to_the_replica_with_free_slots(made: Stack) -> None:
    """By the reports of the replicas; by the gateway's own view where it names one."""
    request = vocoder.ListVoicesRequest()
    async with channel(made.proxy.plan.egress) as calls:
        stub = vocoder_service_pb2_grpc.VocoderServiceStub(calls)
        counts: Counter[str] = Counter()
        deadline = time.monotonic() + 30
        while counts["a"] < 0.8 * counts.total() or not counts:
            assert time.monotonic() < deadline, counts
            answers = [await stub.ListVoices(request) for _ in range(40)]
            counts = Counter(answer.voices[0].id for answer in answers)
        named = (("x-antiphon-endpoint", f"127.0.0.1:{made.replica_ports['b']}"),)
        answers = [await stub.ListVoices(request, metadata=named) for _ in range(10)]
        assert {answer.voices[0].id for answer in answers} == {"b"}


async def test_each_access_is_one_line_of_json(made: Stack, http: httpx.AsyncClient) -> None:
    await http.get("/v1/models", headers={"x-request-id": "logged-1"})
    deadline = time.monotonic() + 20
    while not (lines := [x for x in made.proxy.access_log() if x["request_id"] == "logged-1"]):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    (line,) = lines
    assert (line["code"], line["route"], line["method"]) == (200, "api", "GET")
    assert line["upstream"] == f"127.0.0.1:{made.gateway_ports['one']}"
    assert line["attempts"] == 1
    assert line["bytes_sent"] > 0
    assert line["duration_ms"] >= 0


async def text_of(calls: grpc.aio.Channel, prompt: str, metadata: tuple) -> str:
    """The answer of a Generate call."""
    stub = llm_service_pb2_grpc.LlmServiceStub(calls)
    request = generate_pb2.GenerateRequest(text=prompt, model="m")
    return "".join([event.delta.text async for event in stub.Generate(request, metadata=metadata)])
