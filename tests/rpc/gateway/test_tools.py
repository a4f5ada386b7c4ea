"""Tools and constraints over real sockets: what reaches the service, what is refused, and where."""

from __future__ import annotations

import json

import pytest
from antiphon.llm.v1 import chat_pb2
from antiphon.llm.v1 import generate_pb2 as gen
from antiphon_core.errors import InvalidArgument
from fake_backends import LlmScript
from gateway_bench import GatewayBench, events_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

Mode = chat_pb2.ToolChoice

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
        "strict": True,
    },
}
BARE = {"type": "function", "function": {"name": "wait"}}


def function(name: str) -> dict:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict:
    tools = {"mode": mode, "tools": [function(name) for name in names]}
    return {"type": "allowed_tools", "allowed_tools": tools}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Mode(mode=Mode.MODE_AUTO)),
        ({"tool_choice": None}, Mode(mode=Mode.MODE_AUTO)),
        ({"tool_choice": "auto"}, Mode(mode=Mode.MODE_AUTO)),
        ({"tool_choice": "none"}, Mode(mode=Mode.MODE_NONE)),
        ({"tool_choice": "required"}, Mode(mode=Mode.MODE_REQUIRED)),
        ({"tool_choice": function("wait")}, Mode(mode=Mode.MODE_NAMED, name="wait")),
        (
            {"tool_choice": allowed("auto", "wait")},
            Mode(mode=Mode.MODE_AUTO, allowed=["wait"]),
        ),
        (
            {"tool_choice": allowed("required", "wait", "look")},
            Mode(mode=Mode.MODE_REQUIRED, allowed=["wait", "look"]),
        ),
        ({"parallel_tool_calls": True}, Mode(mode=Mode.MODE_AUTO)),
        ({"parallel_tool_calls": False}, Mode(mode=Mode.MODE_AUTO, single_call=True)),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            Mode(mode=Mode.MODE_REQUIRED, single_call=True),
        ),
    ],
)
async def test_every_choice_reaches_the_service(
    bench: GatewayBench, fields: dict, expected: chat_pb2.ToolChoice
) -> None:
    response = await bench.chat(tools=[LOOK, BARE], **fields)
    assert response.status_code == 200
    chat = bench.fakes.llm.calls.requests[-1].chat
    assert chat.tool_choice == expected
    look, wait = chat.tools
    assert (look.name, look.description, look.strict) == ("look", "Looks.", True)
    assert json.loads(look.parameters_json) == LOOK["function"]["parameters"]
    assert (wait.name, wait.parameters_json, wait.strict) == ("wait", "", False)


async def test_history_with_calls_and_results_reaches_the_service(bench: GatewayBench) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"x"}'}}
    response = await bench.chat(
        tools=[LOOK],
        messages=[
            {"role": "user", "content": "Look."},
            {"role": "assistant", "tool_calls": [call], "reasoning_content": "I look."},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "A cat."}]},
        ],
    )
    assert response.status_code == 200
    _, assistant, result = bench.fakes.llm.calls.requests[-1].chat.messages
    assert assistant == chat_pb2.ChatMessage(
        role=chat_pb2.CHAT_ROLE_ASSISTANT,
        tool_calls=[chat_pb2.ToolCall(id="c1", name="look", arguments_json='{"at":"x"}')],
        reasoning="I look.",
    )
    assert result == chat_pb2.ChatMessage(
        role=chat_pb2.CHAT_ROLE_TOOL,
        parts=[chat_pb2.ContentPart(text="A cat.")],
        tool_call_id="c1",
    )


USER = {"role": "user", "content": "Hi"}
LONG = {"type": "object", "description": "x" * (256 * 1024)}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"functions": [{"name": "f"}]}, "functions", "send tools"),
        ({"function_call": "auto"}, "function_call", "send tool_choice"),
        (
            {"messages": [USER, {"role": "assistant", "function_call": {"name": "f"}}]},
            "messages[1].function_call",
            "send tool_calls",
        ),
        (
            {"messages": [USER, {"role": "function", "name": "f", "content": "x"}]},
            "messages[1].role",
            "allowed: assistant",
        ),
        (
            {"messages": [USER, {"role": "tool", "content": "x"}]},
            "messages[1].tool_call_id",
            "required",
        ),
        (
            {"tools": [{"type": "custom", "custom": {"name": "c"}}]},
            "tools[0].type",
            "allowed: function",
        ),
        ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name", "A-Za-z0-9_-"),
        (
            {"tools": [{"function": {"name": "a", "parameters": []}}]},
            "tools[0].function.parameters",
            "JSON schema object",
        ),
        (
            {"tools": [{"function": {"name": "a", "parameters": LONG}}]},
            "tools[0].function.parameters",
            "262144",
        ),
        ({"tools": [BARE] * 129}, "tools", "128"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        (
            {"tools": [LOOK], "tool_choice": function("gone")},
            "tool_choice.function.name",
            "no tool named 'gone'",
        ),
        (
            {"tools": [LOOK], "tool_choice": allowed("auto", "look", "gone")},
            "tool_choice.allowed_tools.tools[1].function.name",
            "no tool named 'gone'",
        ),
        ({"tools": [LOOK], "tool_choice": "sometimes"}, "tool_choice", "required"),
        ({"response_format": SCHEMA, "regex": "a+"}, "response_format", "exclude each other"),
        ({"regex": "a+", "choice": ["a"]}, "regex", "exclude each other"),
        ({"regex": ""}, "regex", ">= 1"),
        ({"choice": []}, "choice", ">= 1"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s"}}},
            "response_format.json_schema.schema",
            "required",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "s", "schema": LONG},
                }
            },
            "response_format.json_schema.schema",
            "262144",
        ),
    ],
)
async def test_refusals_name_the_field_and_what_to_send(
    bench: GatewayBench, fields: dict, param: str, says: str
) -> None:
    before = len(bench.fakes.llm.calls.requests)
    response = await bench.chat(**fields)
    assert response.status_code == (413 if "262144" in says else 400)
    error = response.json()["error"]
    assert error["param"] == param
    assert says in error["message"]
    assert len(bench.fakes.llm.calls.requests) == before


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"response_format": {"type": "json_object"}}, gen.Constraint(json_object=True)),
        ({"response_format": SCHEMA}, gen.Constraint(json_schema='{"type":"object"}')),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {**SCHEMA["json_schema"], "strict": True},
                }
            },
            gen.Constraint(json_schema='{"type":"object"}', strict=True),
        ),
        ({"regex": "a+"}, gen.Constraint(regex="a+")),
        ({"grammar": 'root ::= "a"'}, gen.Constraint(ebnf='root ::= "a"')),
        ({"choice": ["a", "b"]}, gen.Constraint(choice=gen.ChoiceList(values=["a", "b"]))),
        ({"response_format": {"type": "text"}, "regex": "a"}, gen.Constraint(regex="a")),
    ],
)
async def test_every_constraint_reaches_the_service(
    bench: GatewayBench, fields: dict, constraint: gen.Constraint
) -> None:
    assert (await bench.chat(**fields)).status_code == 200
    assert bench.fakes.llm.calls.requests[-1].constraint == constraint


async def test_a_keyword_that_cannot_be_enforced_is_blamed_at_its_place(
    bench: GatewayBench,
) -> None:
    error = InvalidArgument(
        "constraint.json_schema: /anyOf/0/format: format cannot be enforced",
        reason="UNSUPPORTED_OPTION",
        field="constraint.json_schema",
        metadata={"pointer": "/anyOf/0/format", "keyword": "format"},
    )
    bench.fakes.llm.script = LlmScript(fail_before=error)
    response = await bench.chat(response_format=SCHEMA, stream=True)
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": "response_format.json_schema.schema: /anyOf/0/format: format cannot be enforced",
        "type": "invalid_request_error",
        "param": "response_format.json_schema.schema.anyOf[0].format",
        "code": "unsupported_parameter",
    }


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_service_weakens_is_told_in_a_header(
    bench: GatewayBench, path: str, stream: bool
) -> None:
    bench.fakes.llm.script = LlmScript(notes=("keyword format is not enforced", "caf\u00e9\r\n"))
    body = {"prompt": ["a", "b"]} if path == "/v1/completions" else {"messages": [USER]}
    response = await bench.http.post(path, json={**body, "stream": stream})
    assert response.headers["x-antiphon-notes"] == "keyword format is not enforced; caf???"
    bench.fakes.llm.script = LlmScript()
    response = await bench.http.post(path, json={**body, "stream": stream})
    assert "x-antiphon-notes" not in response.headers


def calls_script(finish: str = "FINISH_REASON_TOOL_CALLS") -> LlmScript:
    """Three calls, their pieces cut in every way, with text between them."""

    def piece(index: int, arguments: str = "", **first: str) -> gen.GenerateDelta:
        call = gen.ToolCallDelta(index=index, arguments=arguments, **first)
        return gen.GenerateDelta(tool_calls=[call], token_count=1)

    return LlmScript(
        words=("So: ",),
        extra_deltas=(
            piece(0, id="call_a", name="look"),
            piece(0, '{"at'),
            piece(0, '":"x"'),
            gen.GenerateDelta(text="and ", token_count=1),
            # One message with the end of a call and the whole of two more.
            gen.GenerateDelta(
                tool_calls=[
                    gen.ToolCallDelta(index=0, arguments="}"),
                    gen.ToolCallDelta(index=1, id="call_b", name="wait", arguments="{"),
                    gen.ToolCallDelta(index=1, arguments="}"),
                    gen.ToolCallDelta(index=2, id="call_c", name="wait", arguments="{}"),
                ],
                token_count=1,
            ),
        ),
        finish=finish,
    )


async def test_stream_of_calls_joins_to_the_whole_answer(bench: GatewayBench) -> None:
    bench.fakes.llm.script = calls_script()
    choice = (await bench.chat(tools=[LOOK, BARE])).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "So: and "
    events = events_of((await bench.chat(tools=[LOOK, BARE], stream=True)).text)
    joined: dict[int, dict] = {}
    for event in events[:-1]:
        pieces = event["choices"][0]["delta"].get("tool_calls", [])
        assert len({piece["index"] for piece in pieces}) == len(pieces)
        for delta in pieces:
            index = delta.pop("index")
            if index not in joined:
                assert set(delta) == {"id", "type", "function"}
                assert set(delta["function"]) == {"name", "arguments"}
                assert delta["function"]["arguments"] == ""
                joined[index] = delta
            else:
                assert set(delta) == {"function"}, "id, type and name come once"
                assert set(delta["function"]) == {"arguments"}
                joined[index]["function"]["arguments"] += delta["function"]["arguments"]
    assert list(joined.values()) == choice["message"]["tool_calls"]
    reasons = [event["choices"][0]["finish_reason"] for event in events[:-1]]
    assert reasons[-1] == "tool_calls"
    assert not any(reasons[:-1])


async def test_a_call_cut_by_length_says_length(bench: GatewayBench) -> None:
    bench.fakes.llm.script = calls_script("FINISH_REASON_LENGTH")
    choice = (await bench.chat(tools=[LOOK, BARE])).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["tool_calls"]) == 3


async def test_details_of_usage_appear_with_their_producers(bench: GatewayBench) -> None:
    counts = gen.Usage(reasoning_tokens=3, accepted_draft_tokens=0, rejected_draft_tokens=4)
    bench.fakes.llm.script = LlmScript(usage=counts)
    usage = (await bench.chat()).json()["usage"]
    assert usage["completion_tokens_details"] == {
        "reasoning_tokens": 3,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 4,
    }
    assert usage["prompt_tokens_details"]["cached_tokens"] == 1


async def test_reasoning_settings_reach_the_service(bench: GatewayBench) -> None:
    await bench.chat(
        reasoning_effort="low",
        thinking_token_budget=0,
        chat_template_kwargs={"enable_thinking": False},
    )
    chat = bench.fakes.llm.calls.requests[-1].chat
    assert chat.reasoning_effort == "low"
    assert chat.HasField("thinking_budget") and chat.thinking_budget == 0
    assert json.loads(chat.template_kwargs_json) == {"enable_thinking": False}
    await bench.chat()
    assert not bench.fakes.llm.calls.requests[-1].chat.HasField("thinking_budget")
