"""With speculation on, the SDK sees the same text, valid calls and values, and what was drafted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal

import openai
import pytest
from openai import pydantic_function_tool
from pydantic import BaseModel, ConfigDict, Field
from support.suite import start_suite, stop_suite

MODEL = "smollm2-135m-instruct"
QUESTION = [{"role": "user", "content": "Name three fruits and their colours."}]
COUNTING = "one two three four five one two three four five one two three four five one two"

pytestmark = pytest.mark.real


class Fruit(BaseModel):
    """Notes a fruit."""

    model_config = ConfigDict(extra="forbid")

    colour: Literal["red", "green", "blue"]
    name: Annotated[str, Field(max_length=12)]
    count: Annotated[int, Field(ge=0, le=9)]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    config = (
        '[llm]\ndrafter = "ngram"\ndraft_depth = 4\ndraft_adaptive = false\ndraft_valve = "off"\n'
    )
    suite, process = start_suite(tmp_path_factory.mktemp("drafting"), config)
    try:
        suite.wait_ready()
        yield openai.OpenAI(base_url=f"{suite.url}/v1", api_key="unused", max_retries=0)
    finally:
        stop_suite(process)


def ask(client: openai.OpenAI, **parameters: Any) -> Any:
    settings = {"model": MODEL, "messages": QUESTION, "max_tokens": 80, "temperature": 0}
    return client.chat.completions.create(**{**settings, **parameters})


def count(client: openai.OpenAI, **parameters: Any) -> Any:
    settings = {"model": MODEL, "prompt": COUNTING, "max_tokens": 40, "temperature": 0}
    return client.completions.create(**{**settings, **parameters})


def test_drafts_change_no_token_and_are_counted(client: openai.OpenAI) -> None:
    plain = count(client, extra_body={"draft_depth": 0})
    drafted = count(client)
    assert drafted.choices[0].text == plain.choices[0].text
    assert drafted.usage.completion_tokens == plain.usage.completion_tokens
    assert plain.usage.completion_tokens_details.accepted_prediction_tokens is None
    details = drafted.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > 10
    assert details.rejected_prediction_tokens is not None


def test_a_stream_counts_the_tokens_of_each_chunk(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "include_token_count": True}
    *chunks, last = count(client, stream=True, stream_options=options)
    counts = [chunk.model_extra["token_count"] for chunk in chunks]
    assert sum(counts) == last.usage.completion_tokens == 40
    assert len([number for number in counts if number]) < 30, "a chunk is not a token"


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_draws_the_same_with_and_without_drafts(client: openai.OpenAI, seed: int) -> None:
    parameters = {"temperature": 1.1, "seed": seed, "max_tokens": 48}
    drafted = ask(client, **parameters).choices[0].message.content
    assert (
        drafted
        == ask(client, **parameters, extra_body={"draft_depth": 0}).choices[0].message.content
    )


def test_calls_and_values_stay_valid_beside_free_text(client: openai.OpenAI) -> None:
    schema = {"name": "fruit", "strict": True, "schema": Fruit.model_json_schema()}
    kinds: list[dict[str, Any]] = [
        {"tools": [pydantic_function_tool(Fruit)], "tool_choice": "required"},
        {"response_format": {"type": "json_schema", "json_schema": schema}},
        {},
    ]

    def one(number: int) -> tuple[int, Any]:
        answer = ask(client, **kinds[number % 3], temperature=1.0, seed=number, max_tokens=100)
        return number, answer.choices[0]

    with ThreadPoolExecutor(9) as pool:
        answers = dict(pool.map(one, range(9)))
    finished = 0
    for number, choice in answers.items():
        if choice.finish_reason == "length":
            continue
        if number % 3 == 0:
            for call in choice.message.tool_calls:
                Fruit.model_validate_json(call.function.arguments, strict=True)
            finished += 1
        elif number % 3 == 1:
            Fruit.model_validate(json.loads(choice.message.content), strict=True)
            finished += 1
    assert finished >= 3
