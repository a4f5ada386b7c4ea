"""Chat completions over real sockets: shapes, errors before and after the first byte."""

from __future__ import annotations

import base64

import pytest
from antiphon.llm.v1 import generate_pb2 as gen
from antiphon_core.errors import InvalidArgument, ResourceExhausted, Unavailable
from fake_backends import WORDS, LlmScript
from gateway_bench import GatewayBench, events_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "".join(WORDS)
USER = {"role": "user", "content": "Hi"}


async def test_whole_answer(bench: GatewayBench) -> None:
    response = await bench.chat()
    body = response.json()
    assert response.status_code == 200
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "small"
    assert body["system_fingerprint"] == "fp_test"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"content": TEXT, "role": "assistant", "refusal": None},
            "finish_reason": "stop",
            "logprobs": None,
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": len(WORDS),
        "total_tokens": 1 + len(WORDS),
        "prompt_tokens_details": {"cached_tokens": 1, "audio_tokens": 0},
        "completion_tokens_details": {},
    }
    assert "timing" not in body


async def test_stream_has_the_sdk_shape(bench: GatewayBench) -> None:
    response = await bench.chat(stream=True, stream_options={"include_usage": True}, n=2)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-accel-buffering"] == "no"
    events = events_of(response.text)
    assert events[-1] == "[DONE]"
    chunks = events[:-1]
    assert len({(c["id"], c["created"], c["model"], c["system_fingerprint"]) for c in chunks}) == 1
    assert [c["choices"][0]["delta"] for c in chunks[:2]] == [
        {"role": "assistant", "content": ""}
    ] * 2
    usage = chunks.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 2 * len(WORDS)
    assert all(c["usage"] is None and len(c["choices"]) == 1 for c in chunks)
    for index in (0, 1):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert "".join(c["delta"].get("content", "") for c in mine) == TEXT
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"]
        assert mine[-1]["finish_reason"] == "stop"


async def test_stream_without_usage_has_no_usage_key(bench: GatewayBench) -> None:
    events = events_of((await bench.chat(stream=True)).text)
    assert all("usage" not in event for event in events[:-1])


async def test_token_counts_add_up(bench: GatewayBench) -> None:
    response = await bench.chat(stream=True, stream_options={"include_token_count": True})
    chunks = events_of(response.text)[:-1]
    assert sum(chunk.get("token_count", 0) for chunk in chunks) == len(WORDS)


async def test_request_reaches_the_service(bench: GatewayBench) -> None:
    await bench.chat(
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        logit_bias={"5": -3},
        seed=42,
        stop=["a", "b"],
        max_completion_tokens=7,
        n=3,
        logprobs=True,
        top_logprobs=2,
        ignore_eos=True,
    )
    request = bench.fakes.llm.calls.requests[-1]
    sampling = request.sampling
    assert request.model == "org/small-model"
    assert sampling.temperature == pytest.approx(0.5)
    assert (sampling.top_k, sampling.seed) == (5, 42)
    assert dict(sampling.logit_bias) == {5: -3.0}
    assert list(request.stop.strings) == ["a", "b"]
    assert request.stop.max_tokens == 7
    assert request.stop.ignore_eos
    assert request.choice_count == 3
    assert request.output.logprobs == 2


EXTENSIONS = {
    "allowed_token_ids": [3, 5],
    "banned_token_ids": [5],
    "no_repeat_ngram_size": 3,
    "no_repeat_ngram_window": 64,
    "draft_depth": 0,
    "min_tokens": 2,
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_extensions_reach_the_service(bench: GatewayBench, path: str) -> None:
    prompt = {"prompt": "a"} if path == "/v1/completions" else {"messages": [USER]}
    body = {**prompt, **EXTENSIONS, "stop_token_ids": [9], "include_stop": True}
    response = await bench.http.post(path, json=body)
    assert response.status_code == 200
    assert "x-antiphon-ignored" not in response.headers
    request = bench.fakes.llm.calls.requests[-1]
    for name, value in EXTENSIONS.items():
        found = getattr(request.sampling, name)
        assert (list(found) if isinstance(value, list) else found) == value
    assert request.sampling.HasField("draft_depth")
    assert list(request.stop.token_ids) == [9]
    assert request.stop.include_stop


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"draft_depth": -1}, "draft_depth"),
        ({"no_repeat_ngram_size": 65}, "no_repeat_ngram_size"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
        ({"banned_token_ids": ["a"]}, "banned_token_ids[0]"),
        ({"min_p": 1.5}, "min_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"x": 1}}, None),
        ({"logit_bias": {"1": 101}}, None),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids"),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
    ],
)
async def test_values_out_of_range_are_refused(
    bench: GatewayBench, fields: dict, param: str | None
) -> None:
    response = await bench.chat(**fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert param is None or error["param"] == param
    assert next(iter(fields)) in error["message"]


async def test_absent_sampling_fields_stay_unset(bench: GatewayBench) -> None:
    await bench.chat(temperature=None)
    request = bench.fakes.llm.calls.requests[-1]
    assert not request.sampling.ListFields()
    assert not request.stop.ListFields()
    assert not request.output.HasField("logprobs")


async def test_logprobs_with_bytes(bench: GatewayBench) -> None:
    body = (await bench.chat(logprobs=True, top_logprobs=2)).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert "".join(item["token"] for item in content) == TEXT
    assert bytes(content[4]["bytes"]).decode() == WORDS[4]
    assert [top["token"] for top in content[0]["top_logprobs"]] == ["alt0", "alt1"]


async def test_tool_calls_and_reasoning(bench: GatewayBench) -> None:
    deltas = (
        gen.GenerateDelta(reasoning="thinking"),
        gen.GenerateDelta(tool_calls=[gen.ToolCallDelta(index=0, id="call_1", name="look")]),
        gen.GenerateDelta(tool_calls=[gen.ToolCallDelta(index=0, arguments='{"a":')]),
        gen.GenerateDelta(tool_calls=[gen.ToolCallDelta(index=0, arguments="1}")]),
    )
    bench.fakes.llm.script = LlmScript(
        words=(), extra_deltas=deltas, finish="FINISH_REASON_TOOL_CALLS"
    )
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    choice = (await bench.chat(tools=tools)).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning_content"] == "thinking"
    call = {"name": "look", "arguments": '{"a":1}'}
    assert choice["message"]["tool_calls"] == [
        {"id": "call_1", "function": call, "type": "function"}
    ]
    assert bench.fakes.llm.calls.requests[-1].chat.tools[0].parameters_json == '{"type":"object"}'
    events = events_of((await bench.chat(tools=tools, stream=True)).text)
    pieces = [
        piece
        for event in events[:-1]
        for piece in event["choices"][0]["delta"].get("tool_calls", [])
    ]
    assert pieces[0] == {
        "index": 0,
        "function": {"name": "look", "arguments": ""},
        "id": "call_1",
        "type": "function",
    }
    assert [piece for piece in pieces if "id" in piece] == pieces[:1]
    assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"a":1}'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ResourceExhausted("full", retry_after=1.2), 429, "capacity_exceeded"),
        (
            InvalidArgument("too long", reason="CONTEXT_LENGTH_EXCEEDED", field="messages"),
            400,
            "context_length_exceeded",
        ),
        (Unavailable("died", reason="WORKER_DIED"), 502, "bad_gateway"),
        (RuntimeError("secret detail"), 500, "internal_error"),
    ],
)
async def test_refusal_before_admission_has_its_status(
    either_bench: GatewayBench, stream: bool, error: Exception, status: int, code: str
) -> None:
    bench = either_bench
    bench.fakes.llm.script = LlmScript(fail_before=error)
    response = await bench.chat(stream=stream)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    body = response.json()["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert body["code"] == code
    assert "secret detail" not in response.text
    if status == 429:
        assert response.headers["retry-after"] == "2"
        assert response.headers["retry-after-ms"] == "1200"


@pytest.mark.parametrize("words", range(len(WORDS) + 1))
async def test_failure_after_admission_is_an_event_without_done(
    either_bench: GatewayBench, words: int
) -> None:
    bench = either_bench
    failure = Unavailable("the engine died", reason="WORKER_DIED")
    bench.fakes.llm.script = LlmScript(fail_after_words=words, failure=failure)
    response = await bench.chat(stream=True)
    assert response.status_code == 200
    events = events_of(response.text)
    assert "[DONE]" not in events
    assert events[-1]["error"]["code"] == "bad_gateway"
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1])
    assert text == "".join(WORDS[:words])
    whole = await bench.chat()
    assert whole.status_code == 502


async def test_a_stream_without_terminal_is_an_error(balanced_bench: GatewayBench) -> None:
    bench = balanced_bench
    bench.fakes.llm.script = LlmScript(end_without_terminal=True)
    assert (await bench.chat()).status_code == 500
    events = events_of((await bench.chat(stream=True)).text)
    assert events[-1]["error"]["code"] == "internal_error"


async def test_media_the_model_does_not_read_is_refused_at_its_part(bench: GatewayBench) -> None:
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    response = await bench.chat(messages=[{"role": "user", "content": parts}])
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "unsupported_modality")
    assert error["param"] == "messages[0].content[1]"


async def test_model_without_template_refuses_chat(bench: GatewayBench) -> None:
    response = await bench.chat(model="base-model")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "template_error")


async def test_constraints_travel_to_the_service(bench: GatewayBench) -> None:
    schema = {"name": "s", "schema": {"type": "object"}, "strict": True}
    await bench.chat(response_format={"type": "json_schema", "json_schema": schema})
    constraint = bench.fakes.llm.calls.requests[-1].constraint
    assert constraint.json_schema == '{"type":"object"}'
    assert constraint.strict
    await bench.chat(response_format={"type": "text"})
    assert not bench.fakes.llm.calls.requests[-1].HasField("constraint")


async def test_spoken_answer(bench: GatewayBench) -> None:
    response = await bench.chat(
        modalities=["text", "audio"], audio={"voice": "alloy", "format": "pcm16"}
    )
    message = response.json()["choices"][0]["message"]
    assert message["content"] is None
    assert message["audio"]["transcript"] == TEXT
    assert base64.b64decode(message["audio"]["data"]) == b"".join(bench.fakes.vocoder.script.chunks)
    assert bench.fakes.vocoder.texts == [TEXT]


async def test_ignored_fields_are_named(bench: GatewayBench) -> None:
    response = await bench.chat(frobnicate=1, user="u", metadata={"a": "b"}, store=False)
    assert response.status_code == 200
    assert response.headers["x-antiphon-ignored"] == "frobnicate"


async def test_request_id_and_trace_travel(either_bench: GatewayBench) -> None:
    bench = either_bench
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    response = await bench.http.post(
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "Hi"}]},
        headers={"x-request-id": "my-id.1", "traceparent": trace},
    )
    assert response.headers["x-request-id"] == "my-id.1"
    assert int(response.headers["openai-processing-ms"]) >= 0
    assert bench.fakes.llm.calls.request_ids[-1] == "my-id.1"
    assert bench.fakes.llm.calls.traceparents[-1].split("-")[1] == trace.split("-")[1]
    minted = await bench.http.get("/health", headers={"x-request-id": "bad id!"})
    assert minted.headers["x-request-id"] != "bad id!"
