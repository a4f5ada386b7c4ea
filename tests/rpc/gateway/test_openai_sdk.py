"""The unmodified openai package against the gateway."""

from __future__ import annotations

import openai
import pytest
from antiphon_core.errors import ResourceExhausted
from fake_backends import WORDS, LlmScript, SpeechScript
from gateway_bench import GatewayBench
from openai import AsyncOpenAI

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "".join(WORDS)
HI = [{"role": "user", "content": "Hi"}]


def client_of(bench: GatewayBench, retries: int = 0) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=bench.url + "/v1", api_key="none", max_retries=retries)


async def test_chat(bench: GatewayBench) -> None:
    async with client_of(bench) as client:
        answer = await client.chat.completions.create(
            model="small", messages=HI, n=2, logprobs=True, top_logprobs=1, seed=1, stop=["x"]
        )
        assert [choice.message.content for choice in answer.choices] == [TEXT, TEXT]
        assert answer.choices[0].logprobs.content[0].top_logprobs[0].token == "alt0"
        assert answer.usage.prompt_tokens_details.cached_tokens == 1


async def test_chat_stream(bench: GatewayBench) -> None:
    async with client_of(bench) as client:
        stream = await client.chat.completions.create(
            model="small", messages=HI, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == TEXT
        assert chunks[-1].usage.completion_tokens == len(WORDS)
        async with client.chat.completions.stream(model="small", messages=HI) as events:
            final = await events.get_final_completion()
        assert final.choices[0].message.content == TEXT


async def test_completions(bench: GatewayBench) -> None:
    async with client_of(bench) as client:
        answer = await client.completions.create(model="base-model", prompt=["a", "b"], echo=True)
        assert [choice.text for choice in answer.choices] == ["a" + TEXT, "b" + TEXT]
        stream = await client.completions.create(model="base-model", prompt="a", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == TEXT


async def test_models_and_embeddings(bench: GatewayBench) -> None:
    async with client_of(bench) as client:
        assert "small" in [model.id async for model in client.models.list()]
        assert (await client.models.retrieve("org/small-model")).id == "org/small-model"
        vectors = await client.embeddings.create(model="base-model", input="a")
        assert vectors.data[0].embedding == [0.5, -0.25]


async def test_audio(bench: GatewayBench) -> None:
    async with client_of(bench) as client:
        speech = await client.audio.speech.create(
            model="tts-1", voice="alloy", input="Hello.", response_format="wav"
        )
        assert speech.content == b"".join(SpeechScript().chunks)
        text = await client.audio.transcriptions.create(model="whisper-1", file=("a.wav", b"RIFF"))
        assert text.text == "Hello there. Bye."
        verbose = await client.audio.transcriptions.create(
            model="whisper-1",
            file=("a.wav", b"RIFF"),
            response_format="verbose_json",
            timestamp_granularities=["word"],
        )
        assert verbose.words[0].word == "Hello"
        stream = await client.audio.transcriptions.create(
            model="whisper-1", file=("a.wav", b"RIFF"), stream=True
        )
        events = [event async for event in stream]
        assert events[-1].text == "Hello there. Bye."
        english = await client.audio.translations.create(model="whisper-1", file=("a.wav", b"RI"))
        assert english.text


async def test_typed_errors(bench: GatewayBench) -> None:
    async with client_of(bench) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="gpt-9", messages=HI)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as wrong:
            await client.chat.completions.create(model="small", messages=HI, temperature=9)
        assert wrong.value.param == "temperature"
        bench.fakes.llm.script = LlmScript(fail_before=ResourceExhausted("full", retry_after=0.01))
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model="small", messages=HI, stream=True)


async def test_failure_inside_a_stream_raises(bench: GatewayBench) -> None:
    bench.fakes.llm.script = LlmScript(fail_after_words=2)
    async with client_of(bench) as client:
        stream = await client.chat.completions.create(model="small", messages=HI, stream=True)
        with pytest.raises(openai.APIError):
            async for _ in stream:
                pass


async def test_retries_a_full_queue(bench: GatewayBench) -> None:
    before = len(bench.fakes.llm.calls.requests)
    bench.fakes.llm.script = LlmScript(fail_before=ResourceExhausted("full", retry_after=0.01))
    async with client_of(bench, retries=2) as client:
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model="small", messages=HI)
    assert len(bench.fakes.llm.calls.requests) - before == 3
