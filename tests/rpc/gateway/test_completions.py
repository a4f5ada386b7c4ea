"""Text completions over real sockets."""

from __future__ import annotations

import pytest
from antiphon_core.errors import Unavailable
from fake_backends import WORDS, LlmScript
from gateway_bench import GatewayBench, events_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "".join(WORDS)


async def complete(bench: GatewayBench, **fields: object):
    body = {"model": "base-model", "prompt": "ab", **fields}
    return await bench.http.post("/v1/completions", json=body)


async def test_whole_answer(bench: GatewayBench) -> None:
    body = (await complete(bench)).json()
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"text": TEXT, "index": 0, "logprobs": None, "finish_reason": "stop"}
    ]
    assert body["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("ab", 1), (["a", "b", "c"], 3), ([97, 98], 1), ([[97], [98, 99]], 2)],
)
async def test_prompt_forms(bench: GatewayBench, prompt: object, count: int) -> None:
    body = (await complete(bench, prompt=prompt, n=2)).json()
    assert [choice["index"] for choice in body["choices"]] == list(range(2 * count))
    assert all(choice["text"] == TEXT for choice in body["choices"])
    assert body["usage"]["completion_tokens"] == 2 * count * len(WORDS)


async def test_echo_of_text_and_of_tokens(bench: GatewayBench) -> None:
    texts = (await complete(bench, prompt="ab", echo=True)).json()
    assert texts["choices"][0]["text"] == "ab" + TEXT
    tokens = (await complete(bench, prompt=[[97, 98], [99]], echo=True)).json()
    assert [choice["text"] for choice in tokens["choices"]] == ["ab" + TEXT, "c" + TEXT]


async def test_logprob_arrays_line_up_with_the_text(bench: GatewayBench) -> None:
    choice = (await complete(bench, echo=True, logprobs=2)).json()["choices"][0]
    logprobs = choice["logprobs"]
    lengths = {len(values) for values in logprobs.values()}
    assert lengths == {2 + len(WORDS)}
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    offsets = logprobs["text_offset"]
    for token, start in zip(logprobs["tokens"], offsets, strict=True):
        assert choice["text"][start : start + len(token)] == token


async def test_scoring_generates_nothing(bench: GatewayBench) -> None:
    response = await complete(bench, prompt="abc", max_tokens=0, echo=True, logprobs=1)
    body = response.json()
    choice = body["choices"][0]
    assert choice["text"] == "abc"
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert body["usage"]["completion_tokens"] == 0
    assert body["usage"]["prompt_tokens"] == 3


async def test_prompt_logprobs_extension(bench: GatewayBench) -> None:
    body = (await complete(bench, prompt="abc", prompt_logprobs=1)).json()
    first, second, third = body["choices"][0]["prompt_logprobs"]
    assert first is None
    assert second == {
        "token": "b",
        "token_id": 7,
        "logprob": -0.5,
        "rank": 2,
        "top_logprobs": {"alt0": -1.0, "b": -0.5},
    }
    assert third["token"] == "c"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
async def test_refusals_name_the_field(bench: GatewayBench, fields: dict, param: str) -> None:
    response = await complete(bench, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_stream_of_several_prompts(bench: GatewayBench) -> None:
    response = await complete(
        bench,
        prompt=["a", "b"],
        echo=True,
        n=2,
        stream=True,
        stream_options={"include_usage": True},
    )
    events = events_of(response.text)
    assert events[-1] == "[DONE]"
    usage = events[-2]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4 * len(WORDS)
    for index in range(4):
        mine = [e["choices"][0] for e in events[:-2] if e["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in mine) == "aabb"[index] + TEXT
        assert mine[-1]["finish_reason"] == "stop"
        assert [choice for choice in mine if choice["finish_reason"]] == mine[-1:]


async def test_stream_logprobs_offsets_run_on(bench: GatewayBench) -> None:
    response = await complete(bench, prompt="ab", echo=True, logprobs=0, stream=True)
    choices = [event["choices"][0] for event in events_of(response.text)[:-1]]
    text = "".join(choice["text"] for choice in choices)
    tokens = [t for c in choices if c["logprobs"] for t in c["logprobs"]["tokens"]]
    offsets = [o for c in choices if c["logprobs"] for o in c["logprobs"]["text_offset"]]
    assert len(tokens) == 2 + len(WORDS)
    for token, start in zip(tokens, offsets, strict=True):
        assert text[start : start + len(token)] == token


async def test_one_failing_prompt_fails_the_request(bench: GatewayBench) -> None:
    bench.fakes.llm.script = LlmScript(
        fail_after_words=2, failure=Unavailable("died", reason="WORKER_DIED")
    )
    assert (await complete(bench, prompt=["a", "b"])).status_code == 502
    events = events_of((await complete(bench, prompt=["a", "b"], stream=True)).text)
    assert events[-1]["error"]["code"] == "bad_gateway"


async def test_tokenize_and_detokenize(bench: GatewayBench) -> None:
    tokens = (await bench.http.post("/tokenize", json={"prompt": "ab"})).json()
    assert tokens == {"count": 2, "max_model_len": 2048, "tokens": [97, 98]}
    chat = {"messages": [{"role": "user", "content": "hey"}]}
    assert (await bench.http.post("/tokenize", json=chat)).json()["rendered"] == "hey"
    text = await bench.http.post("/detokenize", json={"tokens": [97, 98]})
    assert text.json() == {"prompt": "ab"}
    wrong = await bench.http.post("/detokenize", json={"tokens": [999]})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "tokens[0]")
    empty = await bench.http.post("/tokenize", json={})
    assert (empty.status_code, empty.json()["error"]["param"]) == (400, "prompt")


async def test_embeddings(bench: GatewayBench) -> None:
    request = {"model": "base-model", "input": ["a", "b"]}
    body = (await bench.http.post("/v1/embeddings", json=request)).json()
    assert [item["embedding"] for item in body["data"]] == [[0.5, -0.25]] * 2
    encoded = await bench.http.post("/v1/embeddings", json={**request, "encoding_format": "base64"})
    assert encoded.json()["data"][0]["embedding"] == "AAAAPwAAgL4="
    refused = await bench.http.post("/v1/embeddings", json={"input": "a"})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "unsupported_parameter"
