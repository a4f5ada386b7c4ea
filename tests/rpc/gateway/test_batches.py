"""/v1/batches over real sockets, with the unmodified SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence

import openai
import pytest
import pytest_asyncio
from antiphon_core.errors import Internal, ResourceExhausted
from fake_backends import WORDS, LlmScript
from gateway_bench import GatewayBench
from openai import AsyncOpenAI
from openai.types import Batch
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "".join(WORDS)
OVER = ("completed", "failed", "expired", "cancelled")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_kept(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayBench]:
    made = GatewayBench(
        store={"directory": str(tmp_path_factory.mktemp("batches"))},
        batches={"max_in_flight": 3, "poll_seconds": 0.05},
    )
    await made.start()
    await until(lambda: made.gateway.storage.store.is_available)
    yield made
    await made.stop()


@pytest.fixture
def kept(module_kept: GatewayBench) -> GatewayBench:
    module_kept.fakes.llm.script = LlmScript()
    module_kept.fakes.llm.starts.clear()
    return module_kept


@pytest_asyncio.fixture(loop_scope="module")
async def client(kept: GatewayBench) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=kept.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def request(number: int, **body: object) -> dict:
    return {
        "custom_id": f"row {number}",
        "method": "POST",
        "url": "/v1/completions",
        "body": {"model": "base-model", "prompt": f"<{number}>", "echo": True, **body},
    }


def lines_of(requests: Sequence[object]) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in requests)


async def start(
    client: AsyncOpenAI, content: bytes, endpoint: str = "/v1/completions", **fields: object
) -> Batch:
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", **fields
    )


async def over(client: AsyncOpenAI, batch: Batch) -> Batch:
    async with asyncio.timeout(60):
        while (batch := await client.batches.retrieve(batch.id)).status not in OVER:
            await asyncio.sleep(0.02)
    return batch


async def rows_of(client: AsyncOpenAI, file_id: str | None) -> list[dict]:
    assert file_id is not None
    content = await client.files.content(file_id)
    return [json.loads(line) for line in content.text.splitlines()]


async def test_rows_come_in_input_order_from_the_live_route(
    kept: GatewayBench, client: AsyncOpenAI
) -> None:
    batch = await start(
        client,
        lines_of([request(n) for n in range(20)]),
        metadata={"run": "1"},
        extra_body={"output_expires_after": {"anchor": "created_at", "seconds": 7200}},
    )
    assert batch.status == "validating" and batch.metadata == {"run": "1"}
    batch = await over(client, batch)
    assert batch.status == "completed" and batch.errors is None
    assert batch.request_counts.model_dump() == {"total": 20, "completed": 20, "failed": 0}
    assert batch.error_file_id is None
    times = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
    assert times == sorted(times) and batch.expires_at == batch.created_at + 24 * 3600
    rows = await rows_of(client, batch.output_file_id)
    assert [row["custom_id"] for row in rows] == [f"row {n}" for n in range(20)]
    for number, row in enumerate(rows):
        assert row["error"] is None and row["response"]["status_code"] == 200
        assert row["response"]["request_id"] == f"{batch.id}-{number + 1}"
        assert row["response"]["body"]["choices"][0]["text"] == f"<{number}>{TEXT}"
    assert len({row["id"] for row in rows}) == 20
    assert all(start.batch for start in kept.fakes.llm.starts)
    output = await client.files.retrieve(batch.output_file_id)
    assert output.purpose == "batch_output" and output.expires_at == output.created_at + 7200


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (
            "/v1/chat/completions",
            {"model": "small", "messages": [{"role": "user", "content": "a"}]},
        ),
        ("/v1/embeddings", {"model": "base-model", "input": "a"}),
    ],
)
async def test_other_endpoints(client: AsyncOpenAI, endpoint: str, body: dict) -> None:
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": body}
    batch = await over(client, await start(client, lines_of([line]), endpoint))
    rows = await rows_of(client, batch.output_file_id)
    assert rows[0]["response"]["status_code"] == 200


async def test_failed_rows_go_to_the_error_file(client: AsyncOpenAI) -> None:
    requests = [request(0), request(1, temperature=9), request(2), request(3, model="nobody")]
    batch = await over(client, await start(client, lines_of(requests)))
    assert batch.status == "completed"
    assert batch.request_counts.model_dump() == {"total": 4, "completed": 2, "failed": 2}
    good = await rows_of(client, batch.output_file_id)
    bad = await rows_of(client, batch.error_file_id)
    assert [row["custom_id"] for row in good] == ["row 0", "row 2"]
    assert [row["response"]["status_code"] for row in bad] == [400, 404]
    assert bad[0]["response"]["body"]["error"]["param"] == "temperature"


async def test_wrong_input_fails_with_line_numbers(client: AsyncOpenAI) -> None:
    content = (
        lines_of([request(0), request(0)])
        + b"{not json\n\n"
        + lines_of(
            [
                {**request(4), "url": "/v1/embeddings"},
                {**request(5), "method": "GET"},
                request(6, stream=True),
                {**request(7), "custom_id": ""},
                {"custom_id": "x"},
            ]
        )
    )
    batch = await over(client, await start(client, content))
    assert batch.status == "failed" and batch.failed_at
    assert [(error.line, error.code) for error in batch.errors.data] == [
        (2, "duplicate_custom_id"),
        (3, "invalid_json_line"),
        (4, "invalid_json_line"),
        (5, "mismatched_endpoint"),
        (6, "invalid_method"),
        (7, "invalid_value"),
        (8, "invalid_custom_id"),
        (9, "invalid_json_line"),
    ]
    assert "method" in batch.errors.data[-1].message
    empty = await over(client, await start(client, b""))
    assert empty.errors.data[0].code == "empty_file"


async def test_refusals_at_creation(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        await start(client, lines_of([request(0)]), "/v1/audio/speech")
    assert wrong.value.param == "endpoint"
    with pytest.raises(openai.NotFoundError):
        await client.batches.create(
            input_file_id="file-none", endpoint="/v1/completions", completion_window="24h"
        )
    file = await client.files.create(file=("a", b"x"), purpose="user_data")
    with pytest.raises(openai.BadRequestError) as purpose:
        await client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
    assert purpose.value.param == "input_file_id"
    with pytest.raises(openai.BadRequestError):
        await client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="1h"
        )
    with pytest.raises(openai.NotFoundError):
        await client.batches.retrieve("batch_none")


async def test_cancel_keeps_what_is_finished(kept: GatewayBench, client: AsyncOpenAI) -> None:
    kept.fakes.llm.script = LlmScript(delay=0.02)
    batch = await start(client, lines_of([request(n) for n in range(200)]))

    async def some_are_done() -> None:
        while (await client.batches.retrieve(batch.id)).request_counts.completed < 4:
            await asyncio.sleep(0.02)

    await asyncio.wait_for(some_are_done(), 20)
    with pytest.raises(openai.ConflictError):
        await client.files.delete(batch.input_file_id)
    assert (await client.batches.cancel(batch.id)).status == "cancelling"
    ended = await over(client, batch)
    assert ended.status == "cancelled" and ended.cancelling_at <= ended.cancelled_at
    rows = await rows_of(client, ended.output_file_id)
    assert 4 <= len(rows) < 200
    assert [row["custom_id"] for row in rows] == [f"row {n}" for n in range(len(rows))]
    await until(lambda: kept.fakes.llm.calls.running == 0)
    with pytest.raises(openai.ConflictError) as again:
        await client.batches.cancel(batch.id)
    assert again.value.response.headers["x-should-retry"] == "false"
    await client.files.delete(batch.input_file_id)


async def test_at_most_so_many_run_at_a_time(kept: GatewayBench, client: AsyncOpenAI) -> None:
    kept.fakes.llm.script = LlmScript(delay=0.05)
    batches = [await start(client, lines_of([request(n) for n in range(8)])) for _ in range(2)]
    await until(lambda: kept.fakes.llm.calls.running == 3)
    while [b for b in batches if (await client.batches.retrieve(b.id)).status not in OVER]:
        assert kept.fakes.llm.calls.running <= 3
        await asyncio.sleep(0.01)


async def test_a_full_engine_makes_rows_wait_not_fail(
    kept: GatewayBench, client: AsyncOpenAI
) -> None:
    kept.fakes.llm.script = LlmScript(fail_before=ResourceExhausted("full", retry_after=0.05))
    batch = await start(client, lines_of([request(n) for n in range(4)]))
    await until(lambda: len(kept.fakes.llm.starts) > 8)
    assert (await client.batches.retrieve(batch.id)).request_counts.failed == 0
    kept.fakes.llm.script = LlmScript()
    assert (await over(client, batch)).request_counts.completed == 4


async def test_a_failing_engine_is_tried_three_times(
    kept: GatewayBench, client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon_gateway.batches.run._wait_of", lambda answer: 0.0)
    kept.fakes.llm.script = LlmScript(fail_before=Internal("broken"))
    batch = await over(client, await start(client, lines_of([request(0)])))
    assert batch.request_counts.failed == 1 and len(kept.fakes.llm.starts) == 3
    bad = await rows_of(client, batch.error_file_id)
    assert bad[0]["response"]["status_code"] == 500


async def test_what_is_not_run_in_time_expires(
    kept: GatewayBench, client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon_gateway.routes.batches.WINDOW_SECONDS", 2)
    kept.fakes.llm.script = LlmScript(delay=0.02)
    batch = await over(client, await start(client, lines_of([request(n) for n in range(400)])))
    assert batch.status == "expired" and batch.expired_at
    good = await rows_of(client, batch.output_file_id)
    bad = await rows_of(client, batch.error_file_id)
    assert len(good) + len(bad) == 400 == batch.request_counts.total
    assert bad[0]["response"] is None and bad[0]["error"]["code"] == "batch_expired"
    order = [int(row["custom_id"].split()[1]) for row in bad]
    assert order == sorted(order)


async def test_pages_newest_first(client: AsyncOpenAI) -> None:
    made = [(await start(client, lines_of([request(0)]))).id for _ in range(3)]
    listed = [batch.id async for batch in client.batches.list(limit=2)]
    assert listed[:3] == made[::-1]
