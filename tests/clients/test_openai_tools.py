"""Tools through the unmodified openai SDK against SmolLM2: the grammar makes every call valid."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from openai import pydantic_function_tool
from openai.types.chat import ChatCompletionMessageFunctionToolCall
from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel, ConfigDict, ValidationError
from support.suite import RunningSuite

MODEL = "smollm2-135m-instruct"
QUESTION = [{"role": "user", "content": "What is the weather in Paris? Use celsius."}]

pytestmark = pytest.mark.real


class Weather(BaseModel):
    """Tells the weather of a city."""

    model_config = ConfigDict(extra="forbid")

    city: str
    unit: Literal["celsius", "fahrenheit"]


class Alarm(BaseModel):
    """Sets an alarm."""

    model_config = ConfigDict(extra="forbid")

    hour: int
    minute: int
    repeat: bool


TOOLS = [pydantic_function_tool(Weather), pydantic_function_tool(Alarm)]
KINDS: dict[str, type[BaseModel]] = {"Weather": Weather, "Alarm": Alarm}


@pytest.fixture(scope="module")
def client(suite: RunningSuite) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{suite.url}/v1", api_key="unused", max_retries=0)


def ask(client: openai.OpenAI, **parameters: Any) -> Any:
    settings = {"model": MODEL, "messages": QUESTION, "tools": TOOLS, "max_tokens": 128}
    return client.chat.completions.create(**{**settings, **parameters})


def calls_of(choice: Choice) -> list[ChatCompletionMessageFunctionToolCall]:
    """The calls of an answer, each checked against the schema of its tool.

    An answer that was cut may end inside a call, which is left out.
    """
    calls = []
    for call in choice.message.tool_calls or []:
        assert isinstance(call, ChatCompletionMessageFunctionToolCall)
        try:
            KINDS[call.function.name].model_validate_json(call.function.arguments, strict=True)
        except ValidationError:
            assert choice.finish_reason == "length"
            assert call is choice.message.tool_calls[-1]
            continue
        calls.append(call)
    return calls


@pytest.mark.parametrize("seed", range(4))
def test_a_required_call_is_valid_at_any_temperature(client: openai.OpenAI, seed: int) -> None:
    choice = ask(client, tool_choice="required", temperature=1.3, seed=seed).choices[0]
    calls = calls_of(choice)
    assert calls
    assert len({call.id for call in calls}) == len(calls)
    assert choice.finish_reason in ("tool_calls", "length")


def test_a_finished_answer_with_a_call_says_so(client: openai.OpenAI) -> None:
    choice = ask(client, tool_choice="required", parallel_tool_calls=False, temperature=0).choices[
        0
    ]
    assert calls_of(choice)
    assert choice.finish_reason == "tool_calls"


def test_nothing_is_counted_that_nobody_produces(client: openai.OpenAI) -> None:
    usage = ask(client, tool_choice="none", temperature=0, max_tokens=4).usage
    assert usage.completion_tokens_details.model_dump(exclude_none=True) == {}
    assert usage.prompt_tokens_details.cached_tokens is not None


def test_a_named_tool_is_called_once(client: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": "Alarm"}}
    choice = ask(client, tool_choice=named, temperature=0).choices[0]
    assert [call.function.name for call in calls_of(choice)] == ["Alarm"]
    assert choice.finish_reason == "tool_calls"


def test_one_call_at_most_without_parallel_calls(client: openai.OpenAI) -> None:
    answer = ask(
        client, tool_choice="required", parallel_tool_calls=False, temperature=1.3, seed=3, n=3
    )
    assert [len(calls_of(choice)) for choice in answer.choices] == [1, 1, 1]


def test_only_allowed_tools_are_called(client: openai.OpenAI) -> None:
    allowed = {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [{"type": "function", "function": {"name": "Alarm"}}],
        },
    }
    choice = ask(client, tool_choice=allowed, temperature=1.0, seed=1).choices[0]
    assert {call.function.name for call in calls_of(choice)} == {"Alarm"}


def test_none_calls_nothing_and_auto_only_what_is_valid(client: openai.OpenAI) -> None:
    none = ask(client, tool_choice="none", temperature=0, max_tokens=24).choices[0]
    assert none.message.tool_calls is None
    assert none.message.content
    auto = ask(client, temperature=0.8, seed=2, max_tokens=64, n=4)
    for choice in auto.choices:
        called = bool(choice.message.tool_calls)
        assert (choice.finish_reason == "tool_calls") <= called
        if choice.finish_reason != "length":
            assert (choice.finish_reason == "tool_calls") == bool(calls_of(choice))


def test_a_stream_joins_to_the_whole_answer(client: openai.OpenAI) -> None:
    parameters = {"tool_choice": "required", "parallel_tool_calls": False, "temperature": 0}
    whole = ask(client, **parameters).choices[0]
    joined: dict[int, dict[str, Any]] = {}
    reasons = []
    text = ""
    for chunk in ask(client, **parameters, stream=True):
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        reasons.append(choice.finish_reason)
        for delta in choice.delta.tool_calls or []:
            piece = delta.model_dump(exclude_unset=True)
            if delta.index not in joined:
                assert set(piece) == {"index", "id", "type", "function"}
                assert piece["function"]["arguments"] == ""
                joined[delta.index] = piece
            else:
                assert set(piece) == {"index", "function"}
                assert set(piece["function"]) == {"arguments"}
                joined[delta.index]["function"]["arguments"] += piece["function"]["arguments"]
    assert text == (whole.message.content or "")
    assert [
        (call["function"]["name"], call["function"]["arguments"]) for call in joined.values()
    ] == [(call.function.name, call.function.arguments) for call in calls_of(whole)]
    assert list(joined) == list(range(len(joined)))
    assert reasons[-1] == "tool_calls"
    assert not any(reasons[:-1])


def test_the_streaming_helper_parses_the_arguments(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL,
        messages=QUESTION,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "Weather"}},
        temperature=0,
        max_tokens=128,
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    (done,) = (e for e in events if e.type == "tool_calls.function.arguments.done")
    assert isinstance(done.parsed_arguments, Weather)
    deltas = [e for e in events if e.type == "tool_calls.function.arguments.delta"]
    assert "".join(event.arguments_delta for event in deltas) == done.arguments
    assert len(deltas) > 1
    assert final.choices[0].finish_reason == "tool_calls"


def test_a_tool_loop_ends_in_text(client: openai.OpenAI) -> None:
    messages: list[Any] = list(QUESTION)
    first = ask(
        client, messages=messages, tool_choice="required", parallel_tool_calls=False, temperature=0
    ).choices[0]
    (call,) = calls_of(first)
    messages.append(first.message)
    result = {"temperature": 21, "sky": "clear", **json.loads(call.function.arguments)}
    messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
    second = ask(client, messages=messages, tool_choice="none", temperature=0, max_tokens=48)
    assert second.choices[0].message.content
    assert second.choices[0].message.tool_calls is None
    assert second.choices[0].finish_reason in ("stop", "length")
    assert second.usage.prompt_tokens > 30
    # And once more, by the helper that parses.
    parsed = client.chat.completions.parse(
        model=MODEL,
        messages=messages,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=128,
    )
    tool_call = (parsed.choices[0].message.tool_calls or [])[0]
    assert isinstance(tool_call.function.parsed_arguments, Weather | Alarm)


def test_a_call_cut_by_length_says_so(client: openai.OpenAI) -> None:
    choice = ask(client, tool_choice="required", temperature=0, max_tokens=6).choices[0]
    assert choice.finish_reason == "length"


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 3}}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools[2].function.name"),
    ],
)
def test_tools_that_cannot_be_served_are_blamed_at_their_place(
    client: openai.OpenAI, parameters: dict, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, tool_choice="required", **parameters)
    assert (refused.value.param or "").startswith(param)
