"""Responses that are kept: continued, retrieved, cancelled, deleted, and whose they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from antiphon_core import metrics
from antiphon_core.errors import Unavailable
from antiphon_gateway.identity.keys import digest_of
from antiphon_gateway.quota.usage import today
from fake_backends import WORDS, LlmScript
from gateway_bench import GatewayBench
from openai import AsyncOpenAI
from openai.types.responses import Response
from support.waiting import until
from test_responses import CALLS, LOOK, parsed

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "".join(WORDS)
KEYS = "\n".join(
    f'[[keys]]\nsha256 = "{digest_of(name)}"\ntenant = "{tenant}"'
    for name, tenant in (("one", "a"), ("two", "b"))
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_kept(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayBench]:
    folder = tmp_path_factory.mktemp("responses")
    (folder / "keys.toml").write_text(KEYS)
    made = GatewayBench(
        store={"directory": str(folder / "store")},
        identity={"keys_file": str(folder / "keys.toml")},
        batches={"poll_seconds": 0.05},
    )
    await made.start()
    storage = made.gateway.storage
    assert storage is not None
    await until(lambda: storage.store.is_available)
    made.http.headers["authorization"] = "Bearer one"
    yield made
    await made.stop()


@pytest.fixture
def kept(module_kept: GatewayBench) -> GatewayBench:
    module_kept.fakes.llm.script = LlmScript()
    module_kept.fakes.llm.calls.cancelled_at.clear()
    return module_kept


@pytest_asyncio.fixture(loop_scope="module")
async def client(kept: GatewayBench) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=kept.url + "/v1", api_key="one", max_retries=0) as made:
        yield made


async def respond(bench: GatewayBench, **fields: Any) -> httpx.Response:
    return await bench.http.post("/v1/responses", json={"model": "small", "input": "Hi", **fields})


def texts(bench: GatewayBench) -> list[str]:
    messages = bench.fakes.llm.calls.requests[-1].chat.messages
    return ["".join(part.text for part in message.parts) for message in messages]


def refusal(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


async def test_a_conversation_is_continued_without_its_instructions(
    kept: GatewayBench, client: AsyncOpenAI
) -> None:
    first = await client.responses.create(model="small", input="Hi", instructions="Be brief.")
    assert texts(kept) == ["Be brief.", "Hi"]
    second = await client.responses.create(
        model="small", input="More", previous_response_id=first.id
    )
    assert texts(kept) == ["Hi", TEXT, "More"]
    third = await client.responses.create(
        model="small", input="Yet more", previous_response_id=second.id, instructions="Be long."
    )
    assert texts(kept) == ["Be long.", "Hi", TEXT, "More", TEXT, "Yet more"]
    branch = await client.responses.create(
        model="small", input="Other", previous_response_id=first.id
    )
    assert texts(kept) == ["Hi", TEXT, "Other"]
    assert branch.previous_response_id == first.id
    assert (await client.responses.retrieve(third.id)).to_dict() == third.to_dict()


async def test_a_tool_loop(kept: GatewayBench, client: AsyncOpenAI) -> None:
    kept.fakes.llm.script = CALLS
    first = await client.responses.create(model="small", input="Look.", tools=[LOOK])
    call = first.output[-1]
    assert call.type == "function_call"
    kept.fakes.llm.script = LlmScript()
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "a wall"}
    second = await client.responses.create(
        model="small", input=[result], previous_response_id=first.id, tools=[LOOK]
    )
    assert second.output_text == TEXT
    user, assistant, tool = kept.fakes.llm.calls.requests[-1].chat.messages
    assert user.parts[0].text == "Look."
    assert (assistant.reasoning, assistant.tool_calls[0].arguments_json) == ("hm", "{}")
    assert (tool.tool_call_id, tool.parts[0].text) == ("call_1", "a wall")
    result["call_id"] = "call_9"
    with pytest.raises(openai.BadRequestError) as error:
        await client.responses.create(
            model="small", input=[result], previous_response_id=first.id, tools=[LOOK]
        )
    assert error.value.param == "input[0].call_id"


async def test_input_items_are_all_that_it_was_made_from(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="small", input="Hi")
    items = [{"role": "user", "content": f"{number}"} for number in range(5)]
    second = await client.responses.create(
        model="small", input=items, previous_response_id=first.id
    )
    listed = client.responses.input_items.list
    page = await listed(second.id, order="asc")
    assert [item.content[0].text for item in page.data] == ["Hi", TEXT, *"01234"]
    assert page.data[1].id == first.output[0].id
    found = [item async for item in listed(second.id, limit=2)]
    assert found == page.data[::-1]
    with pytest.raises(openai.BadRequestError, match="after"):
        await listed(second.id, after="msg_none")
    with pytest.raises(openai.BadRequestError, match="limit"):
        await listed(second.id, limit=101)


async def test_items_are_referred_to_by_id(kept: GatewayBench, client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="small", input="Hi")
    answer = first.output[0].id
    (question,) = (await client.responses.input_items.list(first.id)).data
    items = [
        {"id": question.id},
        {"type": "item_reference", "id": answer},
        {"role": "user", "content": "On"},
    ]
    second = await client.responses.create(model="small", input=items)
    assert texts(kept) == ["Hi", TEXT, "On"]
    listed = await client.responses.input_items.list(second.id, order="asc")
    assert [item.id for item in listed.data][:2] == [question.id, answer]
    for unknown in ("msg_none", "rs_" + answer[4:], answer[:-4] + "ffff", "x\0"):
        refused = await respond(kept, input=[{"type": "item_reference", "id": unknown}])
        assert refusal(refused) == (404, "not_found", "input[0].id")
    mine = await respond(kept, input=[{"id": answer}], instructions="Go on.")
    assert mine.status_code == 200
    theirs = await respond_as(kept, "two", input=[{"id": answer}])
    assert refusal(theirs) == (404, "not_found", "input[0].id")


async def respond_as(bench: GatewayBench, key: str, **fields: Any) -> httpx.Response:
    return await bench.http.post(
        "/v1/responses",
        json={"model": "small", "input": "Hi", **fields},
        headers={"authorization": f"Bearer {key}"},
    )


async def test_other_tenants_see_nothing(kept: GatewayBench) -> None:
    mine = (await respond(kept)).json()["id"]
    other = {"authorization": "Bearer two"}
    path = f"/v1/responses/{mine}"
    for method, target in (
        ("GET", path),
        ("DELETE", path),
        ("GET", path + "/input_items"),
        ("POST", path + "/cancel"),
    ):
        answer = await kept.http.request(method, target, headers=other)
        assert refusal(answer) == (404, "not_found", "response_id")
    answer = await respond_as(kept, "two", previous_response_id=mine)
    assert refusal(answer) == (404, "not_found", "previous_response_id")
    assert (await kept.http.get(path)).status_code == 200


async def test_what_is_not_stored_is_not_found(kept: GatewayBench, client: AsyncOpenAI) -> None:
    response = await client.responses.create(model="small", input="Hi", store=False)
    answer = await respond(kept, previous_response_id=response.id)
    assert refusal(answer) == (404, "not_found", "previous_response_id")
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)


async def test_deleting(kept: GatewayBench, client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="small", input="Hi")
    second = await client.responses.create(
        model="small", input="More", previous_response_id=first.id
    )
    gone = await kept.http.delete(f"/v1/responses/{first.id}")
    assert gone.json() == {"id": first.id, "deleted": True, "object": "response"}
    with pytest.raises(openai.NotFoundError):
        await client.responses.delete(first.id)
    assert (await client.responses.retrieve(second.id)).output_text == TEXT
    answer = await respond(kept, previous_response_id=second.id)
    assert refusal(answer) == (404, "not_found", "previous_response_id")


async def test_only_a_running_response_can_be_cancelled(
    kept: GatewayBench, client: AsyncOpenAI
) -> None:
    over = await client.responses.create(model="small", input="Hi")
    with pytest.raises(openai.BadRequestError, match="cannot be cancelled"):
        await client.responses.cancel(over.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.cancel("resp_none")
    kept.fakes.llm.script = LlmScript(words=("so ",) * 1000, delay=0.01)
    types = []
    async with await client.responses.create(model="small", input="Hi", stream=True) as stream:
        cancelling: asyncio.Task[Response] | None = None
        async for event in stream:
            types.append(event.type)
            if event.type == "response.output_text.delta" and cancelling is None:
                running = await client.responses.retrieve(
                    event.item_id.replace("msg_", "resp_")[:-4]
                )
                assert running.status == "in_progress"
                with pytest.raises(openai.ConflictError):
                    await client.responses.delete(running.id)
                cancelling = asyncio.create_task(client.responses.cancel(running.id))
    assert cancelling is not None
    cancelled = await cancelling
    assert cancelled.status == "cancelled"
    assert types[-4:] == [
        *("response.output_text.done", "response.content_part.done"),
        *("response.output_item.done", "response.incomplete"),
    ]
    await until(lambda: len(kept.fakes.llm.calls.cancelled_at) == 1)
    stored = await client.responses.retrieve(cancelled.id)
    assert (stored.status, stored.output[0].status) == ("cancelled", "incomplete")
    assert stored.output_text.startswith("so ")
    kept.fakes.llm.script = LlmScript()
    await client.responses.create(model="small", input="On", previous_response_id=cancelled.id)
    assert texts(kept) == ["Hi", stored.output_text, "On"]


async def test_a_reader_that_leaves_ends_it(kept: GatewayBench) -> None:
    kept.fakes.llm.script = LlmScript(words=("so ",) * 1000, delay=0.01)
    body = {"model": "small", "input": "Hi", "stream": True}
    async with kept.http.stream("POST", "/v1/responses", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                identifier = json.loads(line.removeprefix("data: "))["response"]["id"]
                break
    await until(lambda: len(kept.fakes.llm.calls.cancelled_at) == 1)
    path = f"/v1/responses/{identifier}"
    stored = (await kept.http.get(path)).json()
    while stored["status"] == "in_progress":
        await asyncio.sleep(0.01)
        stored = (await kept.http.get(path)).json()
    assert stored["status"] == "cancelled"
    assert all(item["status"] == "incomplete" for item in stored["output"])
    storage = kept.gateway.storage
    assert storage is not None and (await storage.responses.get("a", identifier)).response


async def test_a_failed_response_is_kept_as_such(kept: GatewayBench, client: AsyncOpenAI) -> None:
    kept.fakes.llm.script = LlmScript(fail_after_words=1, failure=Unavailable("died"))
    streamed = parsed((await respond(kept, stream=True)).text)
    stored = await client.responses.retrieve(streamed[-1]["response"]["id"])
    assert stored.status == "failed" and stored.error is not None
    assert stored.error.code == "server_error"


async def test_it_can_be_continued_once_its_terminal_is_there(kept: GatewayBench) -> None:
    """The row is written before the last event is sent."""
    for _ in range(20):
        streamed = parsed((await respond(kept, stream=True)).text)
        identifier = streamed[-1]["response"]["id"]
        answer = await respond(kept, previous_response_id=identifier)
        assert answer.status_code == 200


async def test_a_lost_store(kept: GatewayBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be kept is refused; what was begun is answered, and says that it is not kept."""
    assert kept.gateway.storage is not None
    store = kept.gateway.storage.store

    async def broken() -> None:
        raise Unavailable("gone", reason="STORE_UNAVAILABLE")

    monkeypatch.setattr(store, "_ping", broken)
    before = metrics.value("responses_not_kept_total") or 0
    kept.fakes.llm.script = LlmScript(delay=0.05)
    begun = asyncio.create_task(respond(kept))
    running = kept.fakes.llm.calls.running
    await until(lambda: kept.fakes.llm.calls.running > running)
    store.is_available = False
    try:
        answer = await begun
        assert (answer.status_code, answer.json()["store"]) == (200, False)
        assert metrics.value("responses_not_kept_total") == before + 1
        refused = await respond(kept)
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        assert (await respond(kept, store=False)).status_code == 200
    finally:
        monkeypatch.undo()
    await until(lambda: store.is_available)


async def test_streams_are_not_resumed(kept: GatewayBench, client: AsyncOpenAI) -> None:
    over = await client.responses.create(model="small", input="Hi")
    for query, param in (("stream=true", "stream"), ("starting_after=3", "starting_after")):
        answer = await kept.http.get(f"/v1/responses/{over.id}?{query}")
        assert refusal(answer) == (400, "unsupported_parameter", param)


async def test_a_batch_of_responses(kept: GatewayBench, client: AsyncOpenAI) -> None:
    line = {
        "custom_id": "1",
        "method": "POST",
        "url": "/v1/responses",
        "body": {"model": "small", "input": "Hi"},
    }
    file = await client.files.create(file=("in", json.dumps(line).encode()), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/responses", completion_window="24h"
    )
    while batch.status not in ("completed", "failed"):
        await asyncio.sleep(0.02)
        batch = await client.batches.retrieve(batch.id)
    assert batch.status == "completed" and batch.output_file_id is not None
    row = json.loads((await client.files.content(batch.output_file_id)).text)
    response = Response.model_validate(row["response"]["body"])
    assert response.output_text == TEXT
    assert (await client.responses.retrieve(response.id)).output_text == TEXT


async def test_a_repeated_key_gets_the_first_answer(kept: GatewayBench) -> None:
    headers = {"idempotency-key": "again"}
    body = {"model": "small", "input": "Hi"}
    first = await kept.http.post("/v1/responses", json=body, headers=headers)
    again = await kept.http.post("/v1/responses", json=body, headers=headers)
    assert again.content == first.content and again.headers["idempotent-replayed"] == "true"


async def test_the_account_is_charged(kept: GatewayBench) -> None:
    """Tokens as the service counted them, streamed or not."""
    storage = kept.gateway.storage
    assert storage is not None

    async def used() -> tuple[int, int]:
        rows = [used for key, used in await storage.quotas.usage_of(today()) if key.tenant == "b"]
        return sum(row.requests for row in rows), sum(row.output_tokens for row in rows)

    before = await used()
    for stream in (False, True):
        assert (await respond_as(kept, "two", stream=stream)).status_code == 200
    for _ in range(500):
        if (await used())[0] == before[0] + 2:
            break
        await asyncio.sleep(0.02)
    assert await used() == (before[0] + 2, before[1] + 2 * len(WORDS))
