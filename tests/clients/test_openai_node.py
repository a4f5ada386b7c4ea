"""The unmodified openai package for node against the real stack: each method that is served."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.node import node_client, run_driver
from support.suite import RunningSuite

pytestmark = pytest.mark.real

SCENARIOS = (
    *("models", "chat", "stream", "streamHelper", "abort", "runTools", "streamedTools", "parse"),
    *("completions", "responses", "embeddings", "audio", "files", "batches", "errors"),
)
MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def all_seen(suite: RunningSuite) -> dict[str, Any]:
    return run_driver(node_client(), suite.url, *SCENARIOS)


@pytest.fixture
def seen(request: pytest.FixtureRequest, all_seen: dict[str, Any]) -> Any:
    """What the scenario named by the test saw."""
    found = all_seen[request.param]
    assert "failed" not in found, found["failed"]
    return found


def of(scenario: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("seen", [scenario], indirect=True)


@of("models")
def test_models(seen: Any) -> None:
    assert MODEL in seen["ids"] and seen["one"]["object"] == "model"


@of("chat")
def test_chat(seen: Any) -> None:
    (choice,) = seen["data"]["choices"]
    assert "Paris" in choice["message"]["content"]
    assert seen["id"] == seen["requestId"]


@of("stream")
def test_a_stream_joins_to_the_answer(seen: Any, all_seen: dict[str, Any]) -> None:
    *chunks, last = seen["chunks"]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    whole = all_seen["chat"]["data"]
    assert text == whole["choices"][0]["message"]["content"]
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == whole["usage"]["total_tokens"]


@of("streamHelper")
def test_the_stream_helper(seen: Any, all_seen: dict[str, Any]) -> None:
    assert seen["final"] == all_seen["chat"]["data"]["choices"][0]["message"]["content"]
    assert seen["text"] == seen["final"] and seen["usage"]["completion_tokens"] > 0


@of("abort")
def test_leaving_a_stream_aborts_it(seen: Any) -> None:
    assert seen == {"seen": 2, "aborted": True}


@of("runTools")
def test_run_tools(seen: Any) -> None:
    assert seen["called"][0] in ("Paris", "Rome")
    assert seen["roles"] == ["user", "assistant", "tool"]
    assert seen["result"] == f"Sunny in {seen['called'][0]}."


@of("streamedTools")
def test_streamed_tool_calls_join(seen: Any) -> None:
    (call,) = seen["calls"]
    assert seen["finish"] == "tool_calls" and call["function"]["name"] == "weather"
    assert call["function"]["parsed_arguments"]["city"] in ("Paris", "Rome")


@of("parse")
def test_parse(seen: Any) -> None:
    assert seen["parsed"]["colour"] in ("red", "green", "blue")
    assert isinstance(seen["parsed"]["ripe"], bool)


@of("completions")
def test_completions(seen: Any) -> None:
    (choice,) = seen["whole"]["choices"]
    assert "Paris" in choice["text"] and seen["text"] == choice["text"]
    assert len(choice["logprobs"]["tokens"]) == 4


@of("responses")
def test_responses(seen: Any) -> None:
    assert "Paris" in seen["text"] and seen["kept"] == seen["text"] == seen["deltas"]
    assert seen["types"][0] == "response.created" and seen["types"][-1] == "response.completed"
    assert seen["numbers"] == list(range(len(seen["numbers"])))
    assert seen["parsed"]["colour"] in ("red", "green", "blue")


@of("embeddings")
def test_embeddings(seen: Any) -> None:
    for packed, plain in zip(seen["packed"], seen["plain"], strict=True):
        assert packed["embedding"] == pytest.approx(plain["embedding"], abs=1e-6)
        assert math.hypot(*plain["embedding"]) == pytest.approx(1, abs=1e-3)


@of("audio")
def test_speech_is_heard(seen: Any) -> None:
    assert seen["head"] == "RIFF" and seen["size"] > 50_000
    for text in (seen["text"], seen["srt"], seen["last"]["text"]):
        assert "brown fox" in text
    assert "00:00:0" in seen["srt"] and seen["last"]["type"] == "transcript.text.done"


@of("files")
def test_files(seen: Any) -> None:
    assert seen["content"] == "a line\n" and seen["listed"] and seen["deleted"]["deleted"]
    assert seen["made"]["bytes"] == 7
    assert (seen["gone"]["kind"], seen["gone"]["code"]) == ("NotFoundError", "not_found")


@of("batches")
def test_batches(seen: Any) -> None:
    assert seen["status"] == "completed" and seen["listed"]
    assert seen["row"]["response"]["body"]["object"] == "chat.completion"


@of("errors")
def test_errors_have_their_classes(seen: Any) -> None:
    found = {name: (item["kind"], item["code"], item["param"]) for name, item in seen.items()}
    wrong = ("BadRequestError", "invalid_value", "temperature")
    assert found == {
        "model": ("NotFoundError", "model_not_found", "model"),
        "value": wrong,
        "streamed": wrong,
        "voice": ("BadRequestError", "voice_not_found", "voice"),
        "audio": ("BadRequestError", "invalid_audio", "file"),
        "batch": ("NotFoundError", "not_found", "batch_id"),
    }
    assert all(item["requestId"] for item in seen.values())
