"""Upgrades: credentials, models, client secrets, refusals before and after the upgrade."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from antiphon_gateway.realtime import endpoint
from realtime_gateway import RealtimeGateway
from support.waiting import until
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

KEY = "sk-test"


@pytest.fixture
async def guarded() -> AsyncIterator[RealtimeGateway]:
    made = RealtimeGateway(api_keys=[hashlib.sha256(KEY.encode()).hexdigest()])
    await made.start()
    yield made
    await made.stop()


async def refusal(gateway: RealtimeGateway, query: str = "", **options) -> tuple[int, dict]:
    with pytest.raises(InvalidStatus) as refused:
        async with connect(gateway.socket_url + query, **options):
            pass
    response = refused.value.response
    return response.status_code, json.loads(response.body)["error"]


async def first_event(gateway: RealtimeGateway, query: str = "", **options) -> dict:
    async with connect(gateway.socket_url + query, **options) as socket:
        return json.loads(await socket.recv())


async def secret(gateway: RealtimeGateway, **body) -> httpx.Response:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as client:
        return await client.post(f"{gateway.url}/v1/realtime/client_secrets", json=body)


async def test_an_unknown_model_is_404_before_the_upgrade(gateway: RealtimeGateway) -> None:
    status, error = await refusal(gateway, "?model=nothing")
    assert (status, error["code"]) == (404, "model_not_found")
    assert "small" in error["message"]


@pytest.mark.parametrize("query", ["", "?model=small", "?model=gpt-realtime", "?model=default"])
async def test_names_of_the_pipeline(gateway: RealtimeGateway, query: str) -> None:
    event = await first_event(gateway, query)
    assert event["session"]["model"] == "small"


async def test_keys_by_header_and_by_subprotocol(guarded: RealtimeGateway) -> None:
    status, error = await refusal(guarded)
    assert (status, error["code"]) == (401, "invalid_api_key")
    status, _ = await refusal(guarded, additional_headers={"Authorization": "Bearer wrong"})
    assert status == 401
    headers = {"Authorization": f"Bearer {KEY}"}
    assert (await first_event(guarded, additional_headers=headers))["type"] == "session.created"
    offered = ["realtime", f"openai-insecure-api-key.{KEY}"]
    async with connect(guarded.socket_url, subprotocols=offered) as socket:
        assert socket.subprotocol == "realtime"
        assert json.loads(await socket.recv())["type"] == "session.created"


async def test_a_client_secret_opens_its_session(guarded: RealtimeGateway) -> None:
    session = {"type": "realtime", "instructions": "Be a parrot.", "output_modalities": ["text"]}
    response = await secret(guarded, session=session, expires_after={"seconds": 60})
    made = response.json()
    assert made["value"].startswith("ek_")
    assert made["session"]["instructions"] == "Be a parrot."
    offered = ["realtime", f"openai-insecure-api-key.{made['value']}"]
    for _ in range(2):
        event = await first_event(guarded, subprotocols=offered)
        assert event["session"]["instructions"] == "Be a parrot."
        assert event["session"]["output_modalities"] == ["text"]
    forged = made["value"][:-2] + ("AA" if made["value"][-2:] != "AA" else "BB")
    status, _ = await refusal(
        guarded, subprotocols=["realtime", f"openai-insecure-api-key.{forged}"]
    )
    assert status == 401


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"expires_after": {"seconds": 5}}, "expires_after.seconds"),
        ({"session": {"type": "realtime", "max_output_tokens": 0}}, "session.max_output_tokens"),
        ({"session": {"model": 3}}, "session.model"),
        ({"lifetime": 3}, "lifetime"),
    ],
)
async def test_wrong_secrets_name_the_field(
    gateway: RealtimeGateway, body: dict, param: str
) -> None:
    response = await secret(gateway, **body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_secrets_need_a_key_where_keys_are_configured(guarded: RealtimeGateway) -> None:
    async with httpx.AsyncClient() as client:
        response = await client.post(f"{guarded.url}/v1/realtime/client_secrets", json={})
    assert response.status_code == 401


async def test_the_beta_shape_is_refused(gateway: RealtimeGateway) -> None:
    async with connect(
        gateway.socket_url, additional_headers={"OpenAI-Beta": "realtime=v1"}
    ) as socket:
        event = json.loads(await socket.recv())
        assert event["error"]["code"] == "beta_api_shape_disabled"
        await socket.wait_closed()


async def test_binary_frames_and_garbage_are_errors_not_ends(gateway: RealtimeGateway) -> None:
    async with gateway.session() as client:
        await client.socket.send(b"\x00\x01")
        assert (await client.until("error"))[-1]["error"]["code"] == "invalid_message"
        await client.socket.send("{")
        assert (await client.until("error"))[-1]["error"]["code"] == "invalid_json"
        await client.update(instructions="Still here.")


async def test_a_full_replica_answers_429_with_a_time_to_retry() -> None:
    gateway = RealtimeGateway(realtime={"max_connections": 1})
    await gateway.start()
    try:
        async with gateway.session():
            status, error = await refusal(gateway)
            assert (status, error["code"]) == (429, "capacity_exceeded")
        await until(lambda: not endpoint._sessions)
        await first_event(gateway)
    finally:
        await gateway.stop()


async def test_a_drain_finishes_the_active_response_and_closes_1012(
    gateway: RealtimeGateway,
) -> None:
    gateway.script.word_delay = 0.05
    async with gateway.session() as client, gateway.session() as idle:
        await client.say("hello")
        await client.send("response.create")
        await client.until("response.created")
        gateway.lifecycle.draining()
        events = await client.until("response.done")
        assert events[-1]["response"]["status"] == "completed"
        for each in (client, idle):
            await each.socket.wait_closed()
            assert each.socket.close_code == 1012
    status, error = await refusal(gateway)
    assert (status, error["code"]) == (503, "draining")


async def test_the_session_count_returns_to_zero(gateway: RealtimeGateway) -> None:
    async with gateway.session(), gateway.session():
        assert sum(endpoint._sessions.values()) >= 2
    await until(lambda: not endpoint._sessions)
