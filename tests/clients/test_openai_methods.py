"""The async openai client against the real stack: raw answers, files on disk, timeouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam
from support.suite import RunningSuite
from support.waiting import until

MODEL = "smollm2-135m-instruct"
QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France?"}
]
LONG = [{"role": "user", "content": "word " * 20_000}]
GREEDY: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 24}

pytestmark = pytest.mark.real


def client_of(suite: RunningSuite, **options: Any) -> AsyncOpenAI:
    settings = {"max_retries": 0, "api_key": "unused", **options}
    return AsyncOpenAI(base_url=f"{suite.url}/v1", **settings)


async def test_raw_and_streamed_responses(suite: RunningSuite) -> None:
    async with client_of(suite, default_headers={"x-request-id": "mine-1"}) as client:
        raw = await client.chat.completions.with_raw_response.create(**GREEDY)
        assert raw.headers["x-request-id"] == "mine-1"
        assert int(raw.headers["openai-processing-ms"]) >= 0
        answer = raw.parse()
        assert answer._request_id == "mine-1"
        call = client.chat.completions.with_streaming_response.create(**GREEDY, stream=True)
        async with call as response:
            lines = [line async for line in response.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        async with client.chat.completions.stream(**GREEDY) as events:
            final = await events.get_final_completion()
        assert final.choices[0].message.content == answer.choices[0].message.content


async def test_speech_to_a_file_and_back(suite: RunningSuite, tmp_path: Path) -> None:
    file = tmp_path / "fox.mp3"
    async with client_of(suite) as client:
        call = client.audio.speech.with_streaming_response.create(
            model="tts-1", voice="alloy", input="The quick brown fox jumps.", response_format="mp3"
        )
        async with call as response:
            assert response.headers["content-type"] == "audio/mpeg"
            await response.stream_to_file(file)
        heard = await client.audio.transcriptions.create(
            model="whisper-1", file=file, response_format="vtt"
        )
    assert str(heard).startswith("WEBVTT") and "fox" in str(heard)


async def test_files_models_embeddings_and_responses(suite: RunningSuite, tmp_path: Path) -> None:
    file = tmp_path / "note.txt"
    file.write_bytes(b"a line\n")
    async with client_of(suite) as client:
        made = await client.files.create(file=file, purpose="user_data")
        assert made.filename == "note.txt"
        content = await client.files.content(made.id)
        assert content.content == b"a line\n"
        assert made.id in [item.id async for item in client.files.list(limit=1)]
        assert (await client.files.delete(made.id)).deleted
        assert (await client.models.retrieve(MODEL)).id == MODEL
        vectors = await client.embeddings.create(model=MODEL, input=["one", "two"])
        assert [item.index for item in vectors.data] == [0, 1]
        response = await client.responses.create(
            model=MODEL, input="What is the capital of France?", temperature=0
        )
        assert "Paris" in response.output_text
        kept = await client.responses.retrieve(response.id)
        assert kept.output_text == response.output_text


async def test_a_timeout_of_the_client_ends_the_work(suite: RunningSuite) -> None:
    # Without its end the greedy answer is longer than any machine writes in this time.
    long = {**GREEDY, "max_tokens": 4000, "extra_body": {"ignore_eos": True}}
    async with client_of(suite, timeout=0.3) as client:
        with pytest.raises(openai.APITimeoutError):
            await client.chat.completions.create(**long, n=4)
    await until(lambda: int(suite.snapshot()["llm-0"]["status"]["running"]) == 0)


@pytest.mark.parametrize(
    ("changes", "kind", "code"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError, "model_not_found"),
        ({"top_p": 7}, openai.BadRequestError, "invalid_value"),
        ({"messages": LONG}, openai.BadRequestError, "context_length_exceeded"),
        ({"store": True}, openai.BadRequestError, "unsupported_parameter"),
        ({"messages": []}, openai.BadRequestError, "invalid_value"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_have_their_classes(
    suite: RunningSuite, changes: dict, kind: type[openai.APIStatusError], code: str, stream: bool
) -> None:
    async with client_of(suite) as client:
        with pytest.raises(kind) as refused:
            await client.chat.completions.create(**{**GREEDY, **changes}, stream=stream)
    assert refused.value.code == code and refused.value.request_id


async def test_a_server_that_is_away_is_a_connection_error(suite: RunningSuite) -> None:
    async with AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(openai.APIConnectionError):
            await client.models.list()
