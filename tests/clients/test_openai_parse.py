"""Structured output through the unmodified openai SDK against SmolLM2: always valid."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Annotated, Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field
from support.suite import RunningSuite

MODEL = "smollm2-135m-instruct"
QUESTION = [{"role": "user", "content": "Describe the city of Paris as data."}]

pytestmark = pytest.mark.real


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Place(BaseModel):
    latitude: Annotated[int, Field(ge=-90, le=90)]
    longitude: Annotated[int, Field(ge=-180, le=180)]


class City(BaseModel):
    name: Annotated[str, Field(max_length=20)]
    size: Size
    coastal: bool
    place: Place
    districts: Annotated[list[Literal["north", "south"]], Field(max_length=3)]


@pytest.fixture(scope="module")
def client(suite: RunningSuite) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{suite.url}/v1", api_key="unused", max_retries=0)


def ask(client: openai.OpenAI, **parameters: Any) -> Any:
    settings = {"model": MODEL, "messages": QUESTION, "max_tokens": 200}
    return client.chat.completions.create(**{**settings, **parameters})


def schema_format(schema: dict[str, Any], **settings: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, **settings}}


POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "label": {"enum": ["near", "far"]}},
    "required": ["x", "label"],
    "additionalProperties": False,
}


def test_parse_returns_the_model(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=QUESTION, response_format=City, temperature=0, max_tokens=400
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, City)


@pytest.mark.parametrize("seed", range(4))
def test_any_draw_is_valid(client: openai.OpenAI, seed: int) -> None:
    answer = ask(
        client,
        response_format=schema_format(POINT, strict=True),
        temperature=1.5,
        seed=seed,
        n=2,
    )
    for choice in answer.choices:
        if choice.finish_reason == "length":
            continue
        value = json.loads(choice.message.content)
        assert set(value) == {"x", "label"}
        assert isinstance(value["x"], int)
        assert value["label"] in ("near", "far")


def test_a_stream_of_a_schema_is_the_whole_answer(client: openai.OpenAI) -> None:
    form = schema_format(POINT, strict=True)
    whole = ask(client, response_format=form, temperature=0).choices[0].message.content
    chunks = list(ask(client, response_format=form, temperature=0, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert len(chunks) > 3


def test_the_streaming_helper_ends_parsed(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=QUESTION, response_format=Place, temperature=0, max_tokens=120
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Place)
    assert [event.type for event in events].count("content.done") == 1
    parsed = [event.parsed for event in events if event.type == "content.delta" and event.parsed]
    assert parsed, "partial values come while the answer is written"


def test_a_json_object(client: openai.OpenAI) -> None:
    choice = ask(
        client, response_format={"type": "json_object"}, temperature=0, max_tokens=300
    ).choices[0]
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    assert choice.message.content.lstrip().startswith("{")


@pytest.mark.parametrize("seed", range(3))
def test_regex_choice_and_grammar_extensions(client: openai.OpenAI, seed: int) -> None:
    sampled = {"temperature": 1.2, "seed": seed, "max_tokens": 40}
    dated = ask(client, extra_body={"regex": r"\d{4}-\d{2}-\d{2}"}, **sampled)
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", dated.choices[0].message.content)
    chosen = ask(client, extra_body={"choice": ["yes", "no", "maybe so"]}, **sampled)
    assert chosen.choices[0].message.content in ("yes", "no", "maybe so")
    spelled = ask(
        client,
        extra_body={"grammar": 'root ::= "<" word ">"\nword ::= [a-z] [a-z] [a-z]'},
        **sampled,
    )
    assert re.fullmatch(r"<[a-z]{3}>", spelled.choices[0].message.content)


def test_completions_take_the_extensions_too(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL,
        prompt=["Is it raining?", "Is it late?"],
        temperature=1.0,
        seed=4,
        max_tokens=8,
        extra_body={"choice": ["yes", "no"]},
    )
    assert all(choice.text in ("yes", "no") for choice in answer.choices)


def test_constrained_and_free_requests_share_a_batch(client: openai.OpenAI) -> None:
    def one(number: int) -> tuple[int, str]:
        form = {"response_format": schema_format(POINT, strict=True)} if number % 2 else {}
        answer = ask(client, temperature=0.9, seed=number, max_tokens=60, **form)
        return number, answer.choices[0].message.content

    with ThreadPoolExecutor(6) as pool:
        texts = dict(pool.map(one, range(6)))
    for number, text in texts.items():
        if number % 2 and text.endswith("}"):
            assert set(json.loads(text)) == {"x", "label"}
    alone = ask(client, temperature=0.9, seed=2, max_tokens=60).choices[0].message.content
    assert texts[2] == alone


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        (
            {"response_format": schema_format({"type": "nothing"})},
            "response_format.json_schema.schema",
        ),
        (
            {"extra_body": {"regex": "("}},
            "regex",
        ),
        ({"extra_body": {"choice": ["a", "a"]}}, "choice[1]"),
        ({"extra_body": {"grammar": "root :="}}, "grammar"),
    ],
)
def test_wrong_constraints_are_blamed_at_their_place(
    client: openai.OpenAI, parameters: dict, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, **parameters)
    assert (refused.value.param or "").startswith(param)


def test_strict_refuses_what_it_cannot_enforce_and_lax_tells(client: openai.OpenAI) -> None:
    schema = {**POINT, "not": {"required": ["y"]}}
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, response_format=schema_format(schema, strict=True))
    assert "not" in refused.value.message
    assert (refused.value.param or "").startswith("response_format.json_schema.schema")
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=QUESTION,
        max_tokens=60,
        response_format=schema_format(schema),
    )
    assert "not" in raw.headers["x-antiphon-notes"]
