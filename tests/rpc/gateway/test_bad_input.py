"""Malformed input of every kind: 4xx in the one error shape, never 5xx, never a dead service."""

from __future__ import annotations

import asyncio
import json

import pytest
from gateway_bench import GatewayBench

pytestmark = pytest.mark.asyncio(loop_scope="module")

VALID = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"model": "base-model", "prompt": "Hi"},
    "/v1/embeddings": {"model": "base-model", "input": "Hi"},
    "/v1/rerank": {"query": "Hi", "documents": ["Hi", {"text": "you"}]},
    "/v1/score": {"text_1": "Hi", "text_2": ["Hi"]},
    "/v1/audio/speech": {"input": "Hi"},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [72]},
}
FIELDS = {
    "/v1/chat/completions": (
        "messages model audio frequency_penalty logit_bias logprobs max_completion_tokens "
        "max_tokens modalities n parallel_tool_calls presence_penalty reasoning_effort "
        "response_format seed stop stream stream_options temperature tool_choice tools "
        "top_logprobs top_p top_k min_p repetition_penalty stop_token_ids chat_template_kwargs"
    ),
    "/v1/completions": (
        "prompt model best_of echo frequency_penalty logit_bias logprobs max_tokens n "
        "presence_penalty seed stop stream temperature top_p prompt_logprobs"
    ),
    "/v1/embeddings": "input model dimensions encoding_format",
    "/v1/rerank": "query documents model top_n return_documents",
    "/v1/score": "text_1 text_2 model",
    "/v1/audio/speech": "input model voice response_format speed stream_format sample_rate",
    "/tokenize": "prompt messages model",
    "/detokenize": "tokens model",
}
WRONG = [
    "\x00text",
    [[None]],
    {"a": {"b": 1}},
    -(10**30),
    1e308,
    True,
    "",
]


@pytest.mark.parametrize("path", VALID)
async def test_wrong_values_of_every_field(bench: GatewayBench, path: str) -> None:
    for name in FIELDS[path].split():
        for value in WRONG:
            response = await bench.http.post(path, json={**VALID[path], name: value})
            assert response.status_code < 500, (name, value, response.text)
            if response.status_code >= 400:
                error = response.json()["error"]
                assert set(error) == {"message", "type", "param", "code"}
                assert error["message"]


BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b'{"messages": NaN}',
    b'{"messages":[{"role":"user","content":"\xff"}]}',
    b'{"messages":[{"role":"user","content":"\\ud800"}]}',
    b'{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":'
    b'{"name":"f","parameters":{"\xc0\x80":1}}}]}',
    b'{"messages":[{"role":"user","content":"x"}],"unknown":"\xff"}',
    b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}',
    b'{"messages":[{"role":"user","content":"x"}],"temperature":Infinity}',
    b'{"messages":[{"role":"user","content":"x"}],"x":' + b"[" * 100_000,
    b'{"messages":[{"role":"user","content":"x"}],"x":' + b"[" * 90 + b"]" * 90 + b"}",
    b'{"a":' * 200 + b"1" + b"}" * 200,
    b'{"messages":[{"role":"user","content":"x"}]} trailing',
]


@pytest.mark.parametrize("path", VALID)
async def test_broken_bodies(bench: GatewayBench, path: str) -> None:
    for body in BODIES:
        response = await bench.http.post(
            path, content=body, headers={"content-type": "application/json"}
        )
        assert response.status_code == 400, (body[:80], response.text)
        assert response.json()["error"]["code"] in (
            "invalid_json",
            "invalid_value",
            "missing_required_parameter",
        )


CHAT_REFUSALS = [
    ({"messages": []}, "messages"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
        "messages[0].content[0].type",
    ),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": 2.5}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": ["ok", ""]}, "stop[1]"),
    ({"logit_bias": {"5": 101}}, "logit_bias[...]"),
    ({"seed": 2**63}, "seed"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"stream_options": {}}, "stream_options"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [{"type": "custom", "function": {"name": "a"}}]}, "tools[0].type"),
    (
        {"tools": [{"type": "function", "function": {"name": "a", "parameters": 1}}]},
        "tools[0].function.parameters",
    ),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"store": True}, "store"),
    ({"service_tier": "priority"}, "service_tier"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"modalities": ["audio"]}, "audio"),
    ({"model": "gpt-9"}, "model"),
]


@pytest.mark.parametrize(("fields", "param"), CHAT_REFUSALS, ids=[p for _, p in CHAT_REFUSALS])
async def test_chat_refusals_name_the_field(bench: GatewayBench, fields: dict, param: str) -> None:
    for stream in (False, True):
        if stream and "stream_options" in fields:
            continue
        response = await bench.chat(**{"stream": stream, **fields})
        assert response.status_code in (400, 404)
        error = response.json()["error"]
        assert error["param"] == param
        assert param.partition("[")[0] in error["message"]


async def test_allowed_values_are_listed(bench: GatewayBench) -> None:
    response = await bench.chat(messages=[{"role": "robot", "content": "x"}])
    message = response.json()["error"]["message"]
    assert "assistant, developer, system, tool, user" in message


async def test_unknown_routes_and_methods(bench: GatewayBench) -> None:
    missing = await bench.http.get("/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    wrong = await bench.http.get("/v1/chat/completions")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


async def test_large_bodies_and_headers(bench: GatewayBench) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.port)
    declared = bench.settings.limits.json_bytes + 1
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n{" % declared
    )
    answer = await asyncio.wait_for(reader.read(4096), 20)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"request_too_large" in answer
    writer.close()
    headers = await bench.http.get("/health", headers={"x-large": "x" * 20_000})
    assert headers.status_code == 431


async def test_null_is_absent(bench: GatewayBench) -> None:
    names = FIELDS["/v1/chat/completions"].split()
    nulls = {name: None for name in names if name != "messages"}
    response = await bench.http.post(
        "/v1/chat/completions", json={**VALID["/v1/chat/completions"], **nulls}
    )
    assert response.status_code == 200, response.text


async def test_deep_but_allowed_schema(bench: GatewayBench) -> None:
    schema: dict = {"type": "object"}
    for _ in range(20):
        schema = {"type": "object", "properties": {"a": schema}}
    function = {"name": "f", "parameters": schema}
    response = await bench.chat(tools=[{"type": "function", "function": function}])
    assert response.status_code == 200
    sent = bench.fakes.llm.calls.requests[-1].chat.tools[0].parameters_json
    assert json.loads(sent) == schema
