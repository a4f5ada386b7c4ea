"""Tools against the real engine and the default model, whose template knows none: every call is
valid because the grammar makes it so."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio
from antiphon.llm.v1 import chat_pb2, generate_pb2, llm_service_pb2
from antiphon_core.errors import InvalidArgument
from antiphon_core.rpc.streams import read_all
from antiphon_llm.__main__ import engine_worker
from llm_bench import Collected, LlmBench, limit

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "units": {"enum": ["metric", "imperial"]},
    },
    "required": ["city", "units"],
}
SCHEMAS = {"get_weather": WEATHER, "now": {"type": "object", "properties": {}}}
TOOLS = [
    chat_pb2.Tool(
        name="get_weather",
        description="The weather forecast of a city",
        parameters_json=json.dumps(WEATHER),
        strict=True,
    ),
    chat_pb2.Tool(name="now", description="The time of day"),
]
Choice = chat_pb2.ToolChoice


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlmBench]:
    cache: Path = tmp_path_factory.mktemp("models")
    made = LlmBench(cache, None, engine_worker, context_limit=2048, kv_entries=512)
    await made.start()
    yield made
    await made.stop()


def question(
    text: str = "What is the weather in Oslo?", choice: Choice | None = None, **fields: Any
) -> generate_pb2.GenerateRequest:
    part = chat_pb2.ContentPart(text=text)
    user = chat_pb2.ChatMessage(role=chat_pb2.CHAT_ROLE_USER, parts=[part])
    chat = generate_pb2.ChatInput(messages=[user], tools=TOOLS, tool_choice=choice)
    fields.setdefault("sampling", generate_pb2.SamplingParams(temperature=0.8, seed=5))
    fields.setdefault("stop", limit(400))
    return generate_pb2.GenerateRequest(chat=chat, **fields)


class Calls:
    """The calls of one choice, put together from their pieces."""

    def __init__(self, found: Collected, choice: int = 0) -> None:
        self.named: list[tuple[str, str]] = []
        self.arguments: list[str] = []
        for delta in found.deltas:
            if delta.choice != choice:
                continue
            for piece in delta.tool_calls:
                if piece.index == len(self.named):
                    self.named.append((piece.id, piece.name))
                    self.arguments.append("")
                else:
                    assert not piece.id and not piece.name
                self.arguments[piece.index] += piece.arguments

    def check(self) -> None:
        """Each is of an offered tool and its arguments match the schema."""
        assert self.named
        for (identifier, name), arguments in zip(self.named, self.arguments, strict=True):
            assert identifier.startswith("call_") and len(identifier) == 29
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
        assert len({identifier for identifier, _ in self.named}) == len(self.named)


async def asked(llm: LlmBench, request: generate_pb2.GenerateRequest) -> Collected:
    return Collected(await read_all(llm.stub.Generate(request)))


async def test_required_gives_valid_calls_whatever_is_drawn(llm: LlmBench) -> None:
    for seed in range(6):
        sampling = generate_pb2.SamplingParams(temperature=1.2, seed=seed)
        single = Choice(mode=Choice.MODE_REQUIRED, single_call=True)
        found = await asked(llm, question(choice=single, sampling=sampling))
        calls = Calls(found)
        calls.check()
        assert len(calls.named) == 1
        assert found.text() == ""
        assert found.finished[0].reason == generate_pb2.FINISH_REASON_TOOL_CALLS


async def test_a_named_tool_is_called_once(llm: LlmBench) -> None:
    for name in SCHEMAS:
        named = Choice(mode=Choice.MODE_NAMED, name=name)
        calls = Calls(await asked(llm, question("Tell me a joke.", named)))
        calls.check()
        assert [called for _, called in calls.named] == [name]


async def test_allowed_tools_are_the_only_ones(llm: LlmBench) -> None:
    only = Choice(mode=Choice.MODE_REQUIRED, allowed=["now"], single_call=True)
    calls = Calls(await asked(llm, question(choice=only)))
    calls.check()
    assert calls.named[0][1] == "now"


async def test_choices_call_apart(llm: LlmBench) -> None:
    required = Choice(mode=Choice.MODE_REQUIRED, single_call=True)
    found = await asked(llm, question(choice=required, choice_count=2))
    for choice in range(2):
        Calls(found, choice).check()
    assert Calls(found, 0).named != Calls(found, 1).named


async def test_several_calls_in_one_reply(llm: LlmBench) -> None:
    """The end is barred while a second call could follow, so one does."""
    required = Choice(mode=Choice.MODE_REQUIRED, allowed=["now"])
    sampling = generate_pb2.SamplingParams(temperature=0.8, seed=1, min_tokens=40)
    found = await asked(llm, question(choice=required, sampling=sampling, stop=limit(400)))
    calls = Calls(found)
    assert len(calls.named) > 1
    if found.finished[0].reason == generate_pb2.FINISH_REASON_TOOL_CALLS:
        calls.check()


async def test_auto_leaves_plain_text_alone(llm: LlmBench) -> None:
    greedy = generate_pb2.SamplingParams(temperature=0)
    found = await asked(llm, question("Say hello.", sampling=greedy, stop=limit(40)))
    assert found.text()
    none = Choice(mode=Choice.MODE_NONE)
    without = await asked(llm, question("Say hello.", none, sampling=greedy, stop=limit(40)))
    assert without.text()
    assert without.accepted[0].prompt_tokens < found.accepted[0].prompt_tokens
    assert not without.accepted[0].notes
    assert "system message" in found.accepted[0].notes[0]


async def test_an_answer_of_a_schema_or_a_call(llm: LlmBench) -> None:
    """With tools left free, the output is either what was asked for or a call."""
    schema = {"type": "object", "properties": {"word": {"enum": ["yes", "no"]}}}
    schema |= {"required": ["word"], "additionalProperties": False}
    constraint = generate_pb2.Constraint(json_schema=json.dumps(schema), strict=True)
    for seed in range(4):
        sampling = generate_pb2.SamplingParams(temperature=1.5, seed=seed)
        free = Choice(mode=Choice.MODE_AUTO, single_call=True)
        request = question("Is water wet?", free, sampling=sampling, constraint=constraint)
        found = await asked(llm, request)
        if Calls(found).named:
            Calls(found).check()
        else:
            assert json.loads(found.text())["word"] in ("yes", "no")
        request.chat.tool_choice.mode = Choice.MODE_NONE
        assert json.loads((await asked(llm, request)).text())["word"] in ("yes", "no")


async def test_tokenize_counts_what_generate_takes(llm: LlmBench) -> None:
    request = question()
    counted = await llm.stub.Tokenize(llm_service_pb2.TokenizeRequest(chat=request.chat))
    found = await asked(llm, request)
    assert len(counted.ids) == found.accepted[0].prompt_tokens
    assert "get_weather" in counted.rendered


async def test_a_cut_call_ends_with_length(llm: LlmBench) -> None:
    required = Choice(mode=Choice.MODE_REQUIRED)
    found = await asked(llm, question(choice=required, stop=limit(22)))
    assert found.finished[0].reason == generate_pb2.FINISH_REASON_LENGTH


async def test_the_results_of_calls_are_heard(llm: LlmBench) -> None:
    request = question()
    call = chat_pb2.ToolCall(id="call_1", name="get_weather", arguments_json='{"city": "Oslo"}')
    request.chat.messages.add(role=chat_pb2.CHAT_ROLE_ASSISTANT, tool_calls=[call])
    request.chat.messages.add(
        role=chat_pb2.CHAT_ROLE_TOOL,
        tool_call_id="call_1",
        parts=[chat_pb2.ContentPart(text="Snow, -3 degrees")],
    )
    found = await asked(llm, request)
    assert found.finished
    assert found.accepted[0].prompt_tokens > 200


async def test_multiplexed_calls_travel_as_events(llm: LlmBench) -> None:
    required = Choice(mode=Choice.MODE_REQUIRED, single_call=True)
    start = generate_pb2.StartGenerate(stream_id="a", request=question(choice=required))

    async def requests() -> AsyncIterator[generate_pb2.GenerateManyRequest]:
        yield generate_pb2.GenerateManyRequest(start=start)

    answers = await read_all(llm.stub.GenerateMany(requests()))
    found = Collected([event.response for answer in answers for event in answer.events])
    Calls(found).check()
    assert not any(text for answer in answers for text in answer.texts)


async def test_what_is_wrong_with_a_tool_is_named(llm: LlmBench) -> None:
    async def refused(request: generate_pb2.GenerateRequest) -> InvalidArgument:
        with pytest.raises(InvalidArgument) as caught:
            await read_all(llm.stub.Generate(request))
        return caught.value

    request = question(choice=Choice(mode=Choice.MODE_NAMED, name="other"))
    assert (await refused(request)).field == "chat.tool_choice.name"
    request = question()
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    request.chat.tools[1].parameters_json = json.dumps(schema)
    request.chat.tools[1].strict = True
    error = await refused(request)
    assert (error.reason, error.field) == ("UNSUPPORTED_OPTION", "chat.tools[1].parameters_json")
    assert error.metadata["keyword"] == "uniqueItems"
    request.chat.tools[1].strict = False
    assert "uniqueItems" in (await asked(llm, request)).accepted[0].notes[0]
    request = question()
    request.chat.thinking_budget = 5
    assert (await refused(request)).field == "chat.thinking_budget"
