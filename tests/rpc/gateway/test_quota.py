"""Quotas over real sockets: refusals, headers, settlement, the account in the store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
import pytest_asyncio
from antiphon_core import metrics
from antiphon_gateway.identity.keys import digest_of
from antiphon_gateway.quota.usage import Used, today
from fake_backends import WORDS, LlmScript, SpeechScript
from gateway_bench import GatewayBench
from openai import AsyncOpenAI
from support.waiting import until
from websockets.asyncio.client import connect

pytestmark = pytest.mark.asyncio(loop_scope="module")

HI = [{"role": "user", "content": "Hi"}]
LIMITS = {
    "two at once": {"concurrency": 2},
    "slow": {"requests_per_second": 4, "burst_seconds": 0.5},
    "tokens": {"tokens_per_second": 100},
    "daily": {"tokens_per_day": 60},
    "audio": {"audio_seconds_per_day": 0.02},
    "one socket": {"tokens_per_second": 100},
    "free": {},
}


def keys_toml() -> str:
    lines = []
    for name, limits in LIMITS.items():
        lines += ["[[keys]]", f'sha256 = "{digest_of(name)}"', 'tenant = "acme"']
        lines += [f"limits.{field} = {json.dumps(value)}" for field, value in limits.items()]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quota")
    (path / "keys.toml").write_text(keys_toml())
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_limited(folder: Path) -> AsyncIterator[GatewayBench]:
    made = GatewayBench(
        identity={"keys_file": str(folder / "keys.toml")},
        store={"directory": str(folder / "store")},
        quota={"assumed_output_tokens": 20},
    )
    await made.start()
    await until(lambda: made.gateway.storage.store.is_available)
    yield made
    await made.stop()


@pytest.fixture
def limited(module_limited: GatewayBench) -> GatewayBench:
    module_limited.fakes.llm.script = LlmScript()
    module_limited.fakes.vocoder.script = SpeechScript()
    return module_limited


async def chat(bench: GatewayBench, key: str, **body: object):
    return await bench.http.post(
        "/v1/chat/completions",
        json={"model": "small", "messages": HI, **body},
        headers={"authorization": f"Bearer {key}"},
    )


async def used(bench: GatewayBench, key: str, model: str) -> Used:
    """The account of a key, with what has not been written yet."""
    await bench.gateway.quotas.sync()
    rows = await bench.gateway.storage.quotas.usage_of(today())
    found = Used()
    for place, amount in rows:
        if place.key_id == digest_of(key)[:12] and place.model == model:
            assert place.tenant == "acme"
            found.add(amount)
    return found


async def test_so_many_at_once(limited: GatewayBench) -> None:
    limited.fakes.llm.script = LlmScript(delay=0.05)
    labels = {"layer": "quota", "reason": "RATE_LIMITED", "status": "429"}
    before = metrics.value("http_refusals_total", **labels) or 0
    running = [asyncio.create_task(chat(limited, "two at once")) for _ in range(2)]
    await until(lambda: limited.fakes.llm.calls.running == 2)
    refused = await chat(limited, "two at once")
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert refused.headers["retry-after"] == "1"
    assert metrics.value("http_refusals_total", **labels) == before + 1
    assert [(await task).status_code for task in running] == [200, 200]
    assert (await chat(limited, "two at once")).status_code == 200


async def test_an_abort_frees_its_place(limited: GatewayBench) -> None:
    limited.fakes.llm.script = LlmScript(delay=0.2)
    for _ in range(4):
        task = asyncio.create_task(chat(limited, "two at once", stream=True))
        await until(lambda: limited.fakes.llm.calls.running == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: limited.fakes.llm.calls.running == 0)
    subject = limited.gateway.quotas._subjects[f"key:{digest_of('two at once')[:12]}"]
    await until(lambda: subject.running == 0 and subject.reserved_tokens == 0)


async def test_the_sdk_waits_as_it_is_told(limited: GatewayBench) -> None:
    url = limited.url + "/v1"
    async with AsyncOpenAI(base_url=url, api_key="slow", max_retries=5) as client:
        answers = await asyncio.gather(
            *(client.chat.completions.create(model="small", messages=HI) for _ in range(5))
        )
    assert len(answers) == 5


async def test_headers_tell_what_is_left(limited: GatewayBench) -> None:
    await asyncio.sleep(0)
    answer = await chat(limited, "tokens", max_tokens=50)
    assert answer.headers["x-ratelimit-limit-tokens"] == "1000"
    assert 940 <= int(answer.headers["x-ratelimit-remaining-tokens"]) <= 1000
    assert answer.headers["x-ratelimit-reset-tokens"].endswith("s")
    refused = await chat(limited, "tokens", max_tokens=5000)
    assert refused.status_code == 429
    assert refused.headers["x-should-retry"] == "false"
    assert "x-ratelimit-remaining-tokens" in refused.headers
    assert "x-ratelimit-limit-tokens" not in (await chat(limited, "free")).headers


async def test_a_refused_generation_reaches_no_service(limited: GatewayBench) -> None:
    before = len(limited.fakes.llm.calls.requests)
    assert (await chat(limited, "tokens", max_tokens=900, n=2)).status_code == 429
    assert (await chat(limited, "tokens", max_tokens=900, n=2, stream=True)).status_code == 429
    assert len(limited.fakes.llm.calls.requests) == before


async def test_the_day_is_over(limited: GatewayBench) -> None:
    async with AsyncOpenAI(base_url=limited.url + "/v1", api_key="daily", max_retries=2) as client:
        for _ in range(20):
            try:
                await client.chat.completions.create(model="small", messages=HI)
            except openai.RateLimitError as error:
                assert error.code == "insufficient_quota"
                assert error.response.headers["x-should-retry"] == "false"
                break
        else:
            raise AssertionError("the quota never ended")
    spent = await used(limited, "daily", "org/small-model")
    assert 60 - 21 <= spent.prompt_tokens + spent.output_tokens <= 60


async def test_streams_and_plain_answers_are_charged_alike(limited: GatewayBench) -> None:
    before = await used(limited, "free", "org/small-model")
    await chat(limited, "free")
    await chat(limited, "free", stream=True)
    after = await used(limited, "free", "org/small-model")
    assert after.requests - before.requests == 2
    assert after.output_tokens - before.output_tokens == 2 * len(WORDS)
    assert after.prompt_tokens - before.prompt_tokens == 2
    assert after.cached_tokens - before.cached_tokens == 2


async def test_what_was_cancelled_is_charged_as_generated(limited: GatewayBench) -> None:
    before = await used(limited, "free", "org/small-model")
    limited.fakes.llm.script = LlmScript(words=("a",) * 100, delay=0.01)
    headers = {"authorization": "Bearer free"}
    body = {"model": "small", "messages": HI, "stream": True}
    async with limited.http.stream(
        "POST", "/v1/chat/completions", json=body, headers=headers
    ) as response:
        count = 0
        async for line in response.aiter_lines():
            count += '"content":"a"' in line
            if count == 5:
                break
    await until(lambda: limited.fakes.llm.calls.running == 0)
    after = await used(limited, "free", "org/small-model")
    assert 5 <= after.output_tokens - before.output_tokens < 100


async def test_embeddings_are_charged(limited: GatewayBench) -> None:
    body = {"model": "base-model", "input": ["a", "b"]}
    headers = {"authorization": "Bearer free"}
    assert (await limited.http.post("/v1/embeddings", json=body, headers=headers)).is_success
    assert (await used(limited, "free", "base-model")).prompt_tokens == 3


async def test_audio_seconds_of_a_day(limited: GatewayBench) -> None:
    body = {"model": "tts-1", "voice": "joe", "input": "Hello.", "response_format": "pcm"}
    headers = {"authorization": "Bearer audio"}
    first = await limited.http.post("/v1/audio/speech", json=body, headers=headers)
    assert first.status_code == 200
    calls = len(limited.fakes.vocoder.calls.requests)
    second = await limited.http.post("/v1/audio/speech", json=body, headers=headers)
    assert (second.status_code, second.json()["error"]["code"]) == (429, "insufficient_quota")
    assert len(limited.fakes.vocoder.calls.requests) == calls
    assert (await used(limited, "audio", "joe")).audio_seconds == pytest.approx(0.03)


async def test_a_response_over_a_socket_is_metered(limited: GatewayBench) -> None:
    url = limited.url.replace("http", "ws") + "/v1/realtime?model=small"
    headers = {"authorization": "Bearer one socket"}
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
    ask = {"type": "response.create", "response": {"output_modalities": ["text"]}}
    outcomes = []
    async with connect(url, additional_headers=headers) as socket:
        await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
        for most in (10, 5000):
            ask["response"]["max_output_tokens"] = most
            await socket.send(json.dumps(ask))
            async with asyncio.timeout(10):
                while (event := json.loads(await socket.recv()))["type"] != "response.done":
                    assert event["type"] != "error", event
            outcomes.append(event["response"])
    assert [outcome["status"] for outcome in outcomes] == ["completed", "failed"]
    error = outcomes[1]["status_details"]["error"]
    assert "rate_limit" in error["code"] or "rate_limit" in error["type"]
    spent = await used(limited, "one socket", "org/small-model")
    assert spent.requests == 1 and spent.output_tokens == len(WORDS)
