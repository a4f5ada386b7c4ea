"""Files and batches through the openai SDK against the real stack: SmolLM2 behind Envoy."""

from __future__ import annotations

import json
import time

import openai
import pytest
from openai.types import Batch
from support.suite import RunningSuite

MODEL = "smollm2-135m-instruct"
OVER = ("completed", "failed", "expired", "cancelled")

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def client(suite: RunningSuite) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{suite.url}/v1", api_key="unused", max_retries=0)


def run(client: openai.OpenAI, bodies: list[dict], endpoint: str) -> Batch:
    lines = [
        json.dumps({"custom_id": f"r{n}", "method": "POST", "url": endpoint, "body": body})
        for n, body in enumerate(bodies)
    ]
    file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")
    deadline = time.monotonic() + 120
    while batch.status not in OVER:
        assert time.monotonic() < deadline, batch
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    return batch


def rows(client: openai.OpenAI, file_id: str | None) -> list[dict]:
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def test_a_batch_says_what_the_route_says(client: openai.OpenAI) -> None:
    prompts = ["The capital of France is", "Water boils at", "One, two, three,"]
    shared = {"model": MODEL, "temperature": 0, "max_tokens": 8, "seed": 1}
    bodies = [{**shared, "prompt": prompt} for prompt in prompts]
    batch = run(client, bodies, "/v1/completions")
    assert batch.status == "completed" and batch.request_counts is not None
    assert batch.request_counts.completed == 3
    live = [client.completions.create(**body).choices[0].text for body in bodies]
    found = rows(client, batch.output_file_id)
    assert [row["response"]["body"]["choices"][0]["text"] for row in found] == live


def test_chat_rows_and_rows_that_fail(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Say hello."}]
    good = {"model": MODEL, "messages": messages, "max_tokens": 4}
    batch = run(client, [good, {**good, "temperature": 3}], "/v1/chat/completions")
    assert [row["custom_id"] for row in rows(client, batch.output_file_id)] == ["r0"]
    (bad,) = rows(client, batch.error_file_id)
    assert bad["response"]["status_code"] == 400
    assert bad["response"]["body"]["error"]["param"] == "temperature"


def test_a_file_of_several_megabytes_passes_the_edge(client: openai.OpenAI) -> None:
    data = bytes(range(256)) * 20_000
    made = client.files.create(file=("big.bin", data), purpose="user_data")
    assert client.files.content(made.id).content == data
    assert client.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(made.id)
