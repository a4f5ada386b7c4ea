"""POST /v1/responses over real sockets: what reaches the service, and what comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from antiphon.llm.v1 import chat_pb2
from antiphon.llm.v1 import generate_pb2 as gen
from antiphon_core import metrics
from antiphon_core.errors import ResourceExhausted, Unavailable
from fake_backends import WORDS, LlmScript
from gateway_bench import GatewayBench
from openai.types.responses import Response
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "".join(WORDS)
Mode = chat_pb2.ToolChoice
LOOK = {
    "type": "function",
    "name": "look",
    "description": "Looks.",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    "strict": True,
}
WAIT = {"type": "function", "name": "wait"}
CALLS = LlmScript(
    words=(),
    extra_deltas=(
        gen.GenerateDelta(reasoning="hm"),
        gen.GenerateDelta(tool_calls=[gen.ToolCallDelta(id="call_1", name="look")]),
        gen.GenerateDelta(tool_calls=[gen.ToolCallDelta(arguments="{}")]),
    ),
    finish="FINISH_REASON_TOOL_CALLS",
    usage=gen.Usage(reasoning_tokens=3),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_kept(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayBench]:
    made = GatewayBench(store={"directory": str(tmp_path_factory.mktemp("responses"))})
    await made.start()
    await until(lambda: made.gateway.storage.store.is_available)
    yield made
    await made.stop()


@pytest.fixture
def kept(module_kept: GatewayBench) -> GatewayBench:
    """A gateway with a store."""
    module_kept.fakes.llm.script = LlmScript()
    module_kept.fakes.llm.calls.cancelled_at.clear()
    return module_kept


async def respond(bench: GatewayBench, **fields: Any) -> httpx.Response:
    return await bench.http.post("/v1/responses", json={"model": "small", "input": "Hi", **fields})


async def made(bench: GatewayBench, **fields: Any) -> dict[str, Any]:
    """A response, strictly as the SDK declares it."""
    answer = await respond(bench, **fields)
    assert answer.status_code == 200, answer.text
    Response.model_validate(answer.json(), strict=True)
    return answer.json()


async def events(bench: GatewayBench, **fields: Any) -> list[dict[str, Any]]:
    answer = await respond(bench, stream=True, **fields)
    assert answer.status_code == 200, answer.text
    return parsed(answer.text)


def parsed(text: str) -> list[dict[str, Any]]:
    assert text.endswith("\n\n") and "[DONE]" not in text
    found = []
    for number, block in enumerate(text.removesuffix("\n\n").split("\n\n")):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert (name, event["sequence_number"]) == (f"event: {event['type']}", number)
        found.append(event)
    return found


def last_request(bench: GatewayBench) -> Any:
    return bench.fakes.llm.calls.requests[-1]


async def test_a_text_is_answered(bench: GatewayBench) -> None:
    response = await made(bench, instructions="Be brief.", metadata={"a": "b"}, temperature=0.5)
    (message,) = response["output"]
    assert message["content"] == [{"type": "output_text", "text": TEXT, "annotations": []}]
    assert (response["status"], response["model"], response["store"]) == (
        "completed",
        "small",
        False,
    )
    assert (response["instructions"], response["metadata"]) == ("Be brief.", {"a": "b"})
    assert response["usage"] == {
        "input_tokens": 2,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": len(WORDS),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2 + len(WORDS),
    }
    chat = last_request(bench).chat
    assert [(m.role, m.parts[0].text) for m in chat.messages] == [
        (chat_pb2.CHAT_ROLE_SYSTEM, "Be brief."),
        (chat_pb2.CHAT_ROLE_USER, "Hi"),
    ]
    assert last_request(bench).sampling.temperature == 0.5


async def test_settings_reach_the_service(bench: GatewayBench) -> None:
    await made(
        bench,
        max_output_tokens=7,
        top_p=0.5,
        top_logprobs=2,
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "n", "schema": {"a": 1}, "strict": True}},
        seed=4,
        stop=["x"],
        thinking_token_budget=5,
        chat_template_kwargs={"k": 1},
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
        user="u",
        background=False,
    )
    request = last_request(bench)
    assert (request.stop.max_tokens, list(request.stop.strings)) == (7, ["x"])
    assert (request.sampling.top_p, request.sampling.seed) == (0.5, 4)
    assert request.output.logprobs == 2
    assert (request.chat.reasoning_effort, request.chat.thinking_budget) == ("low", 5)
    assert json.loads(request.chat.template_kwargs_json) == {"k": 1}
    assert json.loads(request.constraint.json_schema) == {"a": 1}
    assert request.constraint.strict


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Mode(mode=Mode.MODE_AUTO)),
        ({"tool_choice": "none"}, Mode(mode=Mode.MODE_NONE)),
        ({"tool_choice": "required"}, Mode(mode=Mode.MODE_REQUIRED)),
        (
            {"tool_choice": {"type": "function", "name": "wait"}},
            Mode(mode=Mode.MODE_NAMED, name="wait"),
        ),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "function", "name": "wait"}],
                },
                "parallel_tool_calls": False,
            },
            Mode(mode=Mode.MODE_REQUIRED, allowed=["wait"], single_call=True),
        ),
    ],
)
async def test_tools_reach_the_service(
    bench: GatewayBench, fields: dict, expected: chat_pb2.ToolChoice
) -> None:
    response = await made(bench, tools=[LOOK, WAIT], **fields)
    assert [tool["name"] for tool in response["tools"]] == ["look", "wait"]
    assert response["tools"][0]["parameters"] == LOOK["parameters"]
    chat = last_request(bench).chat
    assert chat.tool_choice == expected
    look, wait = chat.tools
    assert (look.name, look.description, look.strict) == ("look", "Looks.", True)
    assert json.loads(look.parameters_json) == LOOK["parameters"]
    assert (wait.name, wait.parameters_json, wait.strict) == ("wait", "", False)


async def test_calls_and_reasoning_are_items(bench: GatewayBench) -> None:
    bench.fakes.llm.script = CALLS
    response = await made(bench, tools=[LOOK])
    reasoning, call = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert (call["call_id"], call["name"], call["arguments"]) == ("call_1", "look", "{}")
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
    streamed = await events(bench, tools=[LOOK])
    final = streamed[-1]["response"]

    def bare(items: list[dict]) -> list[dict]:
        return [{key: value for key, value in item.items() if key != "id"} for item in items]

    assert bare(final["output"]) == bare(response["output"])
    assert final["usage"] == response["usage"]


async def test_a_whole_list_of_items_needs_no_state(bench: GatewayBench) -> None:
    """As agent frameworks do it: all items so far, outputs as they came, each time."""
    conversation: list[dict] = [{"role": "user", "content": "Look around."}]
    bench.fakes.llm.script = CALLS
    first = await made(bench, input=conversation, tools=[LOOK], store=False)
    conversation += first["output"]
    conversation.append({"type": "function_call_output", "call_id": "call_1", "output": "a wall"})
    bench.fakes.llm.script = LlmScript()
    second = await made(bench, input=conversation, tools=[LOOK], store=False)
    conversation += second["output"]
    conversation.append({"role": "user", "content": [{"type": "input_text", "text": "And?"}]})
    await made(bench, input=conversation, tools=[LOOK], store=False)
    messages = last_request(bench).chat.messages
    assert [
        chat_pb2.ChatRole.Name(message.role).removeprefix("CHAT_ROLE_") for message in messages
    ] == [*("USER", "ASSISTANT", "TOOL", "ASSISTANT", "USER")]
    assert messages[1].reasoning == "hm"
    assert [(call.id, call.name) for call in messages[1].tool_calls] == [("call_1", "look")]
    assert (messages[2].tool_call_id, messages[2].parts[0].text) == ("call_1", "a wall")
    assert messages[3].parts[0].text == TEXT


async def test_a_picture_needs_a_model_that_reads_them(bench: GatewayBench) -> None:
    url = "data:image/png;base64,aGk="
    parts = [{"type": "input_text", "text": "See"}, {"type": "input_image", "image_url": url}]
    answer = await respond(bench, input=[{"role": "user", "content": parts}])
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (
        *(400, "unsupported_modality"),
        "input[0].content[1]",
    )


async def test_length_makes_it_incomplete(either_bench: GatewayBench) -> None:
    either_bench.fakes.llm.script = LlmScript(finish="FINISH_REASON_LENGTH")
    response = await made(either_bench)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    streamed = await events(either_bench)
    assert streamed[-1]["type"] == "response.incomplete"
    assert streamed[-1]["response"]["status"] == "incomplete"


async def test_logprobs_come_where_they_are_asked_for(bench: GatewayBench) -> None:
    bench.fakes.llm.script = LlmScript(words=("Hi", "!"))
    response = await made(bench, include=["message.output_text.logprobs"], top_logprobs=1)
    found = response["output"][0]["content"][0]["logprobs"]
    assert [item["token"] for item in found] == ["Hi", "!"]
    assert [len(item["top_logprobs"]) for item in found] == [1, 1]
    streamed = await events(bench, include=["message.output_text.logprobs"])
    deltas = [e for e in streamed if e["type"] == "response.output_text.delta"]
    assert [[item["token"] for item in e["logprobs"]] for e in deltas] == [["Hi"], ["!"]]


async def test_refusals_before_the_first_event_have_their_status(
    either_bench: GatewayBench,
) -> None:
    either_bench.fakes.llm.script = LlmScript(
        fail_before=ResourceExhausted("full", reason="QUEUE_FULL", retry_after=2.0)
    )
    for stream in (False, True):
        answer = await respond(either_bench, stream=stream)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")


async def test_a_failure_is_the_terminal_of_a_stream(either_bench: GatewayBench) -> None:
    failure = Unavailable("the engine died", reason="WORKER_DIED")
    either_bench.fakes.llm.script = LlmScript(fail_after_words=2, failure=failure)
    before = metrics.value("http_stream_failures_total", reason="WORKER_DIED") or 0
    streamed = await events(either_bench)
    assert [e["type"] for e in streamed].count("response.failed") == 1
    response = streamed[-1]["response"]
    assert (response["status"], response["error"]) == (
        "failed",
        {"code": "server_error", "message": "the engine died"},
    )
    assert response["output"][0]["content"][0]["text"] == "Hello there"
    assert metrics.value("http_stream_failures_total", reason="WORKER_DIED") == before + 1
    answer = await respond(either_bench)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "bad_gateway")


async def test_a_service_that_ends_early_is_a_failure(bench: GatewayBench) -> None:
    bench.fakes.llm.script = LlmScript(end_without_terminal=True)
    bench.fakes.llm.break_streams = False
    said = bench.fakes.llm.words_said
    task = asyncio.create_task(events(bench))
    await until(lambda: bench.fakes.llm.words_said > said)
    bench.fakes.llm.end_streams()
    streamed = await task
    assert streamed[-1]["type"] == "response.failed"


async def test_truncation_drops_the_oldest_turns(bench: GatewayBench) -> None:
    bench.fakes.llm.script = LlmScript(context_limit=64)
    items = [
        {"role": "system", "content": "sys"},
        *(
            {"role": role, "content": f"{n}" * 10}
            for n in range(4)
            for role in ("user", "assistant")
        ),
        {"role": "user", "content": "last"},
    ]
    answer = await respond(bench, input=items, instructions="ins")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == "input"
    for stream in (False, True):
        answer = await respond(
            bench, input=items, instructions="ins", truncation="auto", stream=stream
        )
        assert answer.status_code == 200
        texts = [m.parts[0].text for m in last_request(bench).chat.messages]
        # 10 bytes of instructions and question, 8 of room for the answer, two turns of 20.
        assert texts == ["ins", "sys", *("2" * 10,) * 2, *("3" * 10,) * 2, "last"]
        assert "dropped the 4 oldest" in answer.headers["x-antiphon-notes"]
    answer = await respond(bench, input=items, truncation="auto", max_output_tokens=40)
    texts = [m.parts[0].text for m in last_request(bench).chat.messages]
    assert texts == ["sys", "last"]
    answer = await respond(bench, input="x" * 80, truncation="auto")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    fits = await respond(bench, input="x" * 60, truncation="auto")
    assert fits.status_code == 200 and "x-antiphon-notes" not in fits.headers
