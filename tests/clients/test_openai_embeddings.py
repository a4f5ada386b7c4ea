"""Vectors, rankings and token counts of the default model through Envoy, by unmodified clients."""

from __future__ import annotations

import json
import math
import time

import httpx
import openai
import pytest
from support.suite import RunningSuite

MODEL = "smollm2-135m-instruct"
TEXTS = [f"{'The river is wide. ' * (n % 5)}Text number {n}." for n in range(64)]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def client(suite: RunningSuite) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{suite.url}/v1", api_key="unused", max_retries=0)


@pytest.fixture(scope="module")
def http(suite: RunningSuite) -> httpx.Client:
    return httpx.Client(base_url=suite.url, timeout=60)


def length(vector: list[float]) -> float:
    return math.sqrt(math.fsum(value * value for value in vector))


def test_a_batch_in_the_sdks_base64_equals_floats_and_each_alone(client: openai.OpenAI) -> None:
    together = client.embeddings.create(model=MODEL, input=TEXTS)
    assert [item.index for item in together.data] == list(range(64))
    assert all(length(item.embedding) == pytest.approx(1.0, abs=1e-5) for item in together.data)
    assert len(together.data[0].embedding) == 576
    plain = client.embeddings.create(model=MODEL, input=TEXTS[7], encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(together.data[7].embedding, abs=1e-7)
    counts = [client.embeddings.create(model=MODEL, input=text).usage.prompt_tokens
              for text in TEXTS[:3]]  # fmt: skip
    three = client.embeddings.create(model=MODEL, input=TEXTS[:3])
    assert three.usage.prompt_tokens == three.usage.total_tokens == sum(counts)


def test_dimensions_are_cut_and_brought_to_unit_length(client: openai.OpenAI) -> None:
    whole = client.embeddings.create(model=MODEL, input="a river").data[0].embedding
    short = client.embeddings.create(model=MODEL, input="a river", dimensions=64).data[0].embedding
    assert short == pytest.approx([value / length(whole[:64]) for value in whole[:64]], abs=1e-6)
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model=MODEL, input="a river", dimensions=577)
    assert refused.value.param == "dimensions" and "576" in refused.value.message


def test_token_lists_are_what_tokenize_says(client: openai.OpenAI, http: httpx.Client) -> None:
    tokens = http.post("/tokenize", json={"prompt": "a river"}).json()["tokens"]
    by_text = client.embeddings.create(model=MODEL, input="a river")
    for given in (tokens, [tokens]):
        by_ids = client.embeddings.create(model=MODEL, input=given)
        assert by_ids.data[0].embedding == by_text.data[0].embedding
        assert by_ids.usage.prompt_tokens == len(tokens)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([], "input"),
        (["a", ""], "input[1]"),
        ([10**6], "input[0]"),
        (["a"] * 2049, "input"),
        (["a", "b " * 9000], "input[1]"),
    ],
    ids=["none", "empty", "unknown", "many", "long"],
)
def test_wrong_inputs_are_named(client: openai.OpenAI, given: list, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model=MODEL, input=given)
    assert str(refused.value.param).startswith(param)


def test_a_ranking_says_by_what_it_ranks(client: openai.OpenAI, http: httpx.Client) -> None:
    query, documents = "a river", ["a river", "Tax law of 1996, second part", "the rivers"]
    body = http.post("/v1/rerank", json={"query": query, "documents": documents}).json()
    assert body["method"] == "embedding"
    assert body["results"][0]["index"] == 0
    assert body["results"][0]["relevance_score"] == pytest.approx(1.0, abs=1e-5)
    texts = [query, *documents]
    vectors = [item.embedding for item in client.embeddings.create(model=MODEL, input=texts).data]
    for item in body["results"]:
        cosine = math.fsum(a * b for a, b in zip(vectors[0], vectors[item["index"] + 1],
                                                 strict=True))  # fmt: skip
        assert item["relevance_score"] == pytest.approx(cosine, abs=1e-5)
    scored = http.post("/v1/score", json={"text_1": query, "text_2": documents}).json()
    assert [item["score"] for item in scored["data"]] == [
        item["relevance_score"] for item in sorted(body["results"], key=lambda item: item["index"])
    ]


def test_a_batch_of_embeddings(client: openai.OpenAI) -> None:
    bodies = [{"model": MODEL, "input": text} for text in TEXTS[:3]]
    lines = [
        json.dumps({"custom_id": f"r{n}", "method": "POST", "url": "/v1/embeddings", "body": body})
        for n, body in enumerate(bodies)
    ]
    file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
    )
    deadline = time.monotonic() + 60
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() < deadline, batch
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed" and batch.output_file_id
    rows = client.files.content(batch.output_file_id).text.splitlines()
    found = [json.loads(row)["response"]["body"]["data"][0]["embedding"] for row in rows]
    live = client.embeddings.create(model=MODEL, input=TEXTS[:3], encoding_format="float")
    assert found == [item.embedding for item in live.data]


def test_token_counts_of_messages_and_tools_are_those_of_chat(
    client: openai.OpenAI, http: httpx.Client
) -> None:
    messages = [{"role": "user", "content": "How is the weather in Oslo?"}]
    for more in ({}, {"tools": TOOLS}):
        counted = http.post("/tokenize", json={"messages": messages, **more}).json()
        answer = client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=1, **more
        )
        assert answer.usage is not None
        assert counted["count"] == len(counted["tokens"]) == answer.usage.prompt_tokens
        assert counted["max_model_len"] > counted["count"]
        text = http.post("/detokenize", json={"tokens": counted["tokens"]}).json()["prompt"]
        assert text == counted["rendered"]
