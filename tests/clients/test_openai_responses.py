"""Responses through the unmodified openai SDK against the real stack: SmolLM2 behind Envoy."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Literal

import openai
import pytest
from openai.types.responses import Response, ResponseFunctionToolCall
from pydantic import BaseModel, Field
from support.suite import RunningSuite

MODEL = "smollm2-135m-instruct"
QUESTION = "What is the capital of France?"
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "celsius": {"type": "boolean"}},
        "required": ["city", "celsius"],
        "additionalProperties": False,
    },
    "strict": True,
}

pytestmark = pytest.mark.real


class City(BaseModel):
    name: Annotated[str, Field(max_length=20)]
    size: Literal["small", "large"]
    coastal: bool


@pytest.fixture(scope="module")
def client(suite: RunningSuite) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{suite.url}/v1", api_key="unused", max_retries=0)


def ask(client: openai.OpenAI, question: Any = QUESTION, **parameters: Any) -> Response:
    settings = {"model": MODEL, "input": question, "max_output_tokens": 32, "temperature": 0}
    return client.responses.create(**{**settings, **parameters})


def test_an_answer_is_as_chat_gives_it(client: openai.OpenAI) -> None:
    response = ask(client, instructions="Answer briefly.")
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "system", "content": "Answer briefly."},
            {"role": "user", "content": QUESTION},
        ],
        max_tokens=32,
        temperature=0,
    )
    assert response.output_text == chat.choices[0].message.content
    assert response.usage is not None and chat.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens
    Response.model_validate(response.to_dict())


def test_a_stream_adds_up(client: openai.OpenAI) -> None:
    whole = ask(client)
    with client.responses.stream(
        model=MODEL, input=QUESTION, max_output_tokens=32, temperature=0
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == final.output_text == whole.output_text
    assert len(deltas) > 1


@pytest.mark.parametrize("seed", range(2))
def test_parsed_output_matches_its_model(client: openai.OpenAI, seed: int) -> None:
    parsed = client.responses.parse(
        model=MODEL,
        input="Describe the city of Paris as data.",
        text_format=City,
        temperature=1.2,
        max_output_tokens=120,
        extra_body={"seed": seed},
    )
    assert isinstance(parsed.output_parsed, City)


def test_a_conversation_goes_on_by_id(client: openai.OpenAI) -> None:
    first = ask(client, "My name is Ada.", instructions="Be kind.")
    second = ask(client, "What is my name?", previous_response_id=first.id)
    items = [
        {"role": "user", "content": "My name is Ada."},
        *[item.to_dict() for item in first.output],
        {"role": "user", "content": "What is my name?"},
    ]
    stateless = ask(client, items, store=False)
    assert second.output_text == stateless.output_text
    assert second.usage is not None and stateless.usage is not None
    assert second.usage.input_tokens == stateless.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0


@pytest.mark.parametrize("keeps", [True, False])
def test_a_tool_loop(client: openai.OpenAI, keeps: bool) -> None:
    """By id of the former response, and with all items sent again as agent frameworks do."""
    tools: Any = [WEATHER]
    items: list[Any] = [{"role": "user", "content": "What is the weather in Rome?"}]
    first = ask(
        client,
        items,
        tools=tools,
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=200,
        store=keeps,
    )
    calls = [item for item in first.output if isinstance(item, ResponseFunctionToolCall)]
    assert calls and first.status == "completed"
    arguments = json.loads(calls[0].arguments)
    assert arguments["city"] in ("Paris", "Rome") and isinstance(arguments["celsius"], bool)
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        for call in calls
    ]
    if keeps:
        last = ask(client, results, previous_response_id=first.id, tools=tools, tool_choice="none")
    else:
        items += [item.to_dict() for item in first.output] + results
        last = ask(client, items, tools=tools, tool_choice="none", store=False)
    assert last.output_text


def test_what_is_kept_can_be_read_and_deleted(client: openai.OpenAI) -> None:
    made = ask(client, "Hello")
    assert client.responses.retrieve(made.id) == made
    (item,) = client.responses.input_items.list(made.id).data
    assert item.type == "message" and item.content[0].to_dict()["text"] == "Hello"
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(made.id)
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_too_long_conversation_is_refused_or_cut(client: openai.OpenAI) -> None:
    turn = [
        {"role": "user", "content": "Tell me about rivers. " * 10},
        {"role": "assistant", "content": "They flow. " * 20},
    ]
    items = turn * 100 + [{"role": "user", "content": "Say yes."}]
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, items, max_output_tokens=4)
    assert error.value.code == "context_length_exceeded"
    # Nearly all of the context is asked for as output, so that little is left to read.
    answer = client.responses.with_raw_response.create(
        model=MODEL,
        input=items,
        truncation="auto",
        max_output_tokens=7800,
        extra_body={"choice": ["yes"]},
    )
    assert "truncation dropped" in answer.headers["x-antiphon-notes"]
    response = answer.parse()
    assert response.output_text == "yes" and response.usage is not None
    assert 50 < response.usage.input_tokens <= 8192 - 7800


async def test_the_async_client_streams_and_cancels(suite: RunningSuite) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{suite.url}/v1", api_key="unused", max_retries=0
    ) as client:
        stream = await client.responses.create(
            model=MODEL, input="Count to a thousand.", stream=True, extra_body={"ignore_eos": True}
        )
        cancelling: asyncio.Task[Response] | None = None
        async for event in stream:
            if event.type == "response.created":
                identifier = event.response.id
            if event.type == "response.output_text.delta" and cancelling is None:
                cancelling = asyncio.create_task(client.responses.cancel(identifier))
        assert cancelling is not None
        assert (await cancelling).status == "cancelled"
        assert (await client.responses.retrieve(identifier)).status == "cancelled"
