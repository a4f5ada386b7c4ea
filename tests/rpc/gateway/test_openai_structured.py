"""The unmodified openai package's helpers for schemas and tools against scripted answers."""

from __future__ import annotations

import json

import openai
import pytest
from antiphon.llm.v1 import chat_pb2
from antiphon.llm.v1 import generate_pb2 as gen
from fake_backends import LlmScript
from gateway_bench import GatewayBench
from openai import AsyncOpenAI, pydantic_function_tool
from pydantic import BaseModel

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASK = [{"role": "user", "content": "Where is Paris?"}]


class City(BaseModel):
    """Looks a city up."""

    name: str
    population: int


PARIS = City(name="Paris", population=2_100_000)
PIECES = ('{"name": "Pa', 'ris", "popul', 'ation": 2100000}')


def client_of(bench: GatewayBench) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=bench.url + "/v1", api_key="none", max_retries=0)


def call_script() -> LlmScript:
    def piece(arguments: str, **first: str) -> gen.GenerateDelta:
        call = gen.ToolCallDelta(index=0, arguments=arguments, **first)
        return gen.GenerateDelta(tool_calls=[call], token_count=1)

    deltas = (piece("", id="call_1", name="City"), *(piece(text) for text in PIECES))
    return LlmScript(words=(), extra_deltas=deltas, finish="FINISH_REASON_TOOL_CALLS")


async def test_parse_sends_a_strict_schema_and_reads_the_answer(bench: GatewayBench) -> None:
    bench.fakes.llm.script = LlmScript(words=PIECES)
    async with client_of(bench) as client:
        answer = await client.chat.completions.parse(
            model="small", messages=ASK, response_format=City
        )
    assert answer.choices[0].message.parsed == PARIS
    constraint = bench.fakes.llm.calls.requests[-1].constraint
    assert constraint.strict
    assert json.loads(constraint.json_schema)["required"] == ["name", "population"]


async def test_a_stream_of_a_schema_ends_parsed(bench: GatewayBench) -> None:
    bench.fakes.llm.script = LlmScript(words=PIECES)
    async with (
        client_of(bench) as client,
        client.chat.completions.stream(model="small", messages=ASK, response_format=City) as stream,
    ):
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == PARIS
    kinds = [event.type for event in events if event.type != "chunk"]
    assert kinds.count("content.done") == 1
    assert "".join(e.delta for e in events if e.type == "content.delta") == "".join(PIECES)


async def test_an_answer_cut_by_length_is_refused_by_parse(bench: GatewayBench) -> None:
    bench.fakes.llm.script = LlmScript(words=PIECES[:2], finish="FINISH_REASON_LENGTH")
    async with client_of(bench) as client:
        with pytest.raises(openai.LengthFinishReasonError):
            await client.chat.completions.parse(model="small", messages=ASK, response_format=City)


async def test_parse_reads_the_arguments_of_a_tool(bench: GatewayBench) -> None:
    bench.fakes.llm.script = call_script()
    async with client_of(bench) as client:
        answer = await client.chat.completions.parse(
            model="small", messages=ASK, tools=[pydantic_function_tool(City)]
        )
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.parsed_arguments == PARIS
    assert bench.fakes.llm.calls.requests[-1].chat.tools[0].strict


async def test_a_stream_of_a_tool_call_has_its_events(bench: GatewayBench) -> None:
    bench.fakes.llm.script = call_script()
    async with (
        client_of(bench) as client,
        client.chat.completions.stream(
            model="small", messages=ASK, tools=[pydantic_function_tool(City)]
        ) as stream,
    ):
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    deltas = [e for e in events if e.type == "tool_calls.function.arguments.delta"]
    assert "".join(event.arguments_delta for event in deltas) == "".join(PIECES)
    (done,) = (e for e in events if e.type == "tool_calls.function.arguments.done")
    assert done.parsed_arguments == PARIS
    assert final.choices[0].finish_reason == "tool_calls"
    call = final.choices[0].message.tool_calls[0]
    assert (call.id, call.function.name, call.type) == ("call_1", "City", "function")


async def test_the_message_of_a_call_can_be_sent_back_as_it_is(bench: GatewayBench) -> None:
    bench.fakes.llm.script = call_script()
    tools = [pydantic_function_tool(City)]
    async with client_of(bench) as client:
        first = await client.chat.completions.create(model="small", messages=ASK, tools=tools)
        message = first.choices[0].message
        bench.fakes.llm.script = LlmScript()
        await client.chat.completions.create(
            model="small",
            tools=tools,
            messages=[
                *ASK,
                message,
                {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "In France."},
            ],
        )
    _, assistant, result = bench.fakes.llm.calls.requests[-1].chat.messages
    assert assistant.tool_calls[0] == chat_pb2.ToolCall(
        id="call_1", name="City", arguments_json="".join(PIECES)
    )
    assert not assistant.parts
    assert result.tool_call_id == "call_1"
