"""Responses requests that are refused: each names the field, and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest
from antiphon_core.errors import InvalidArgument
from fake_backends import LlmScript
from gateway_bench import GatewayBench

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOOL = {"type": "function", "name": "f"}
USER = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": 3}, "input", "invalid_value"),
        ({"input": [3]}, "input[0]", "invalid_value"),
        ({"input": [USER, {"role": "user", "content": []}]}, "input[1].content", None),
        ({"input": [{"type": "mcp_call"}]}, "input[0].type", "unsupported_parameter"),
        ({"input": [{**USER, "z": 1}]}, "input[0].z", "unsupported_parameter"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "x"}]}]},
            "input[0].content[0].type",
            "invalid_value",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": ""}]},
            "input[0].call_id",
            "invalid_value",
        ),
        ({"undeclared": 1}, "undeclared", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"conversation": "c"}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"store": True}, "store", "unsupported_parameter"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "not_found"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "invalid_value"),
        ({"tools": [TOOL, {"type": "mcp"}]}, "tools[1].type", "invalid_value"),
        ({"tools": [{**TOOL, "function": {}}]}, "tools[0].function", "unsupported_parameter"),
        ({"tools": [{**TOOL, "parameters": 3}]}, "tools[0].parameters", "invalid_value"),
        ({"tools": [{**TOOL, "async": True}]}, "tools[0].async", "unsupported_parameter"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}},
            "tool_choice.name",
            "invalid_value",
        ),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type", "invalid_value"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n"}}},
            "text.format.schema",
            "missing_required_parameter",
        ),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "invalid_value"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary", "invalid_value"),
        ({"reasoning": {"budget": 3}}, "reasoning.budget", "unsupported_parameter"),
        ({"truncation": "middle"}, "truncation", "invalid_value"),
        ({"include": ["everything"]}, "include[0]", "invalid_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"stream_options": {}}, "stream_options", "invalid_value"),
        ({"model": "nobody"}, None, "model_not_found"),
        ({"model": "base-model"}, None, "template_error"),
        ({"metadata": {"a": 1}}, None, "invalid_value"),
    ],
)
async def test_what_is_wrong_is_named(
    bench: GatewayBench, fields: dict[str, Any], param: str | None, code: str | None
) -> None:
    body = {"model": "small", "input": "Hi", **fields}
    answer = await bench.http.post("/v1/responses", json=body)
    error = answer.json()["error"]
    assert answer.status_code == (404 if code in ("not_found", "model_not_found") else 400), error
    assert code in (None, error["code"])
    assert param in (None, error["param"])
    if param:
        assert param in error["message"]


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("chat.messages[0].parts[0].text", "instructions"),
        ("chat.messages[1].role", "input[0]"),
        ("chat.messages[2].tool_call_id", "input[2]"),
        ("chat.tools[0].parameters_json", "tools[0].parameters"),
        ("constraint.json_schema", "text.format.schema"),
        ("stop.max_tokens", "max_output_tokens"),
        ("chat.reasoning_effort", "reasoning.effort"),
        ("output.logprobs", "top_logprobs"),
        ("sampling.top_p", "top_p"),
        ("chat", "input"),
    ],
)
async def test_what_the_service_blames_has_the_name_of_the_request(
    bench: GatewayBench, field: str, param: str
) -> None:
    refused = InvalidArgument(f"{field} is wrong", field=field)
    bench.fakes.llm.script = LlmScript(fail_before=refused)
    items = [USER, {"type": "reasoning", "summary": []}, {**USER, "role": "assistant"}]
    body = {"model": "small", "instructions": "i", "input": items}
    answer = await bench.http.post("/v1/responses", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["message"] == f"{param} is wrong"


@pytest.mark.parametrize("path", ["", "/cancel", "/input_items"])
async def test_nothing_is_kept_without_a_store(bench: GatewayBench, path: str) -> None:
    method = "POST" if path == "/cancel" else "GET"
    answer = await bench.http.request(method, f"/v1/responses/resp_1{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_parameter")
