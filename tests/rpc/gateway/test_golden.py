"""Whole wire responses against reviewed files; ids and times are replaced by names.

A missing file is written and fails the test once: delete, run, review, commit.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from antiphon.llm.v1 import generate_pb2 as gen
from antiphon_core.errors import Unavailable
from fake_backends import LlmScript
from gateway_bench import GatewayBench

pytestmark = pytest.mark.asyncio(loop_scope="module")

GOLDEN = Path(__file__).parents[2] / "golden" / "gateway"
SHOWN_HEADERS = (
    "content-type",
    "cache-control",
    "x-accel-buffering",
    "transfer-encoding",
    "retry-after",
    "retry-after-ms",
    "x-antiphon-ignored",
)
CHAT = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
TOOLS = [{"type": "function", "function": {"name": "look"}}]
ASKED = {"model": "small", "input": "Hi"}
TEXT = {"model": "base-model", "prompt": "ab"}
EMBEDDED = {"model": "base-model", "input": ["a", "b"]}
RANKED = {"query": "ab", "documents": ["x", {"text": "ba"}], "top_n": 1, "return_documents": True}

TOOL_CALL = LlmScript(
    words=(),
    extra_deltas=(
        gen.GenerateDelta(reasoning="hm"),
        gen.GenerateDelta(tool_calls=[gen.ToolCallDelta(id="call_1", name="look")]),
        gen.GenerateDelta(tool_calls=[gen.ToolCallDelta(arguments="{}")]),
    ),
    finish="FINISH_REASON_TOOL_CALLS",
)
DEATH = Unavailable("the engine died", reason="WORKER_DIED")

CASES: dict[str, tuple[str, dict, LlmScript]] = {
    "chat": ("/v1/chat/completions", CHAT, LlmScript()),
    "chat_stream": (
        "/v1/chat/completions",
        {**CHAT, "stream": True, "stream_options": {"include_usage": True}},
        LlmScript(),
    ),
    "chat_logprobs_stream": (
        "/v1/chat/completions",
        {**CHAT, "stream": True, "logprobs": True, "top_logprobs": 1},
        LlmScript(words=("Hi",)),
    ),
    "chat_tools_stream": (
        "/v1/chat/completions",
        {**CHAT, "stream": True, "tools": TOOLS},
        TOOL_CALL,
    ),
    "chat_stream_failure": (
        "/v1/chat/completions",
        {**CHAT, "stream": True},
        LlmScript(fail_after_words=1, failure=DEATH),
    ),
    "chat_refusal": ("/v1/chat/completions", {**CHAT, "temperature": "hot", "x": 1}, LlmScript()),
    "completion_scored": (
        "/v1/completions",
        {**TEXT, "max_tokens": 0, "echo": True, "logprobs": 1},
        LlmScript(),
    ),
    "completion_stream": ("/v1/completions", {**TEXT, "stream": True, "echo": True}, LlmScript()),
    "response": ("/v1/responses", ASKED, LlmScript()),
    "response_stream": ("/v1/responses", {**ASKED, "stream": True}, LlmScript()),
    "response_tools_stream": (
        "/v1/responses",
        {**ASKED, "stream": True, "tools": [{"type": "function", "name": "look"}]},
        TOOL_CALL,
    ),
    "response_stream_failure": (
        "/v1/responses",
        {**ASKED, "stream": True},
        LlmScript(fail_after_words=1, failure=DEATH),
    ),
    "response_refusal": ("/v1/responses", {**ASKED, "input": [{"type": "x"}]}, LlmScript()),
    "embedding_base64": ("/v1/embeddings", {**EMBEDDED, "encoding_format": "base64"}, LlmScript()),
    "rerank": ("/v1/rerank", RANKED, LlmScript()),
    "score": ("/v1/score", {"text_1": "ab", "text_2": ["a", "ab"]}, LlmScript()),
    "score_refusal": ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a"] * 3}, LlmScript()),
}


@pytest.mark.parametrize("name", CASES)
async def test_wire_response(bench: GatewayBench, name: str) -> None:
    path, body, script = CASES[name]
    bench.fakes.llm.script = script
    response = await bench.http.post(path, json=body)
    found = response.headers
    headers = [f"{key}: {found[key]}" for key in SHOWN_HEADERS if key in found]
    text = re.sub(r"(chatcmpl|cmpl|rerank|score)-[0-9a-f]{32}", r"\1-ID", response.text)
    text = re.sub(r"(resp|msg|fc|rs)_[0-9a-f]{32}", r"\1_ID", text)
    text = re.sub(r'"(created|completed)_at":\d+', r'"\1_at":TIME', text)
    text = re.sub(r'"created":\d+', '"created":TIME', text)
    shown = "\n".join([f"HTTP {response.status_code}", *headers, "", text])
    file = GOLDEN / f"{name}.txt"
    if not file.exists():
        file.write_text(shown, encoding="utf-8")
        pytest.fail(f"wrote {file.name}: review and commit it")
    assert shown == file.read_text(encoding="utf-8")
