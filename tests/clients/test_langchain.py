"""LangChain's ChatOpenAI, unmodified, against SmolLM2: text, streams, tools and schemas."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field, SecretStr
from support.suite import RunningSuite

MODEL = "smollm2-135m-instruct"

pytestmark = pytest.mark.real


class Fruit(BaseModel):
    """A fruit."""

    colour: Literal["red", "green", "blue"]
    name: Annotated[str, Field(max_length=12)]


@tool
def weather(city: Annotated[str, Field(max_length=16)], unit: Literal["celsius", "kelvin"]) -> str:
    """Tells the weather of a city."""
    return f"In {city} it is 20 {unit}."


@pytest.fixture(scope="module")
def model(suite: RunningSuite) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL,
        base_url=f"{suite.url}/v1",
        api_key=SecretStr("unused"),
        temperature=0,
        max_completion_tokens=64,
        max_retries=0,
    )


def test_a_conversation_is_answered_and_counted(model: ChatOpenAI) -> None:
    answer = model.invoke(
        [
            SystemMessage("You are a helpful assistant."),
            HumanMessage("What is the capital of France?"),
        ]
    )
    assert "Paris" in answer.text
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] in ("stop", "length")
    assert answer.response_metadata["model_name"] == MODEL


async def test_a_stream_joins_to_the_answer(model: ChatOpenAI) -> None:
    question = "What is the capital of France?"
    whole = model.invoke(question)
    chunks = [chunk async for chunk in model.astream(question, stream_usage=True)]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert len(chunks) > 2
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    assert joined.usage_metadata is not None
    assert joined.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


def test_a_tool_loop(model: ChatOpenAI) -> None:
    bound = model.bind_tools([weather], tool_choice="required", parallel_tool_calls=False)
    messages: list[Any] = [HumanMessage("How is the weather in Paris?")]
    answer = bound.invoke(messages)
    assert isinstance(answer, AIMessage)
    assert not answer.invalid_tool_calls
    (call,) = answer.tool_calls
    result = weather.invoke(call)
    assert isinstance(result, ToolMessage)
    assert result.content.startswith("In ")
    text = model.invoke([*messages, answer, result])
    assert text.text


def test_pieces_of_a_call_join_to_one(model: ChatOpenAI) -> None:
    bound = model.bind_tools([weather], tool_choice="weather", parallel_tool_calls=False)
    chunks = list(bound.stream("How is the weather in Rome?"))
    assert sum(bool(chunk.tool_call_chunks) for chunk in chunks) > 1
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    (call,) = joined.tool_calls
    assert call["name"] == "weather"
    assert set(call["args"]) == {"city", "unit"}


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(
    model: ChatOpenAI, method: Literal["json_schema", "function_calling"]
) -> None:
    structured = model.with_structured_output(Fruit, method=method)
    assert isinstance(structured.invoke("Name a fruit and its colour."), Fruit)


def test_log_probabilities_and_a_batch(model: ChatOpenAI) -> None:
    answers = model.bind(logprobs=True, top_logprobs=2).batch(["Say one.", "Say two."])
    for answer in answers:
        content = answer.response_metadata["logprobs"]["content"]
        assert len(content[0]["top_logprobs"]) == 2
