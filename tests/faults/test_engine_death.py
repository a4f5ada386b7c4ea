"""kill -9 of a worker during streams: typed errors at once, recovery by itself."""

from __future__ import annotations

import asyncio
import io
import time
import wave
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from antiphon_cli.talk.audio import REALTIME_RATE, Samples, to_pcm16
from antiphon_cli.talk.http import open_client
from antiphon_cli.talk.speech import say
from openai.types.chat import ChatCompletion
from support.suite import RunningSuite, start_suite, stop_suite
from support.waiting import until

pytestmark = pytest.mark.real

STREAMS = 8
ERROR_WITHIN_S = 15.0
"""At once for a busy machine; the streams would run for longer."""


@pytest.fixture(scope="module")
def own_suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSuite]:
    """A suite of this module's own: its workers are killed."""
    running, process = start_suite(tmp_path_factory.mktemp("faults") / Path("run"))
    try:
        running.wait_ready()
        yield running
    finally:
        stop_suite(process)


def client_of(suite: RunningSuite) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{suite.url}/v1", api_key="unused", max_retries=0)


async def stream_until_error(
    client: openai.AsyncOpenAI, started: asyncio.Event, number: int
) -> float:
    """Streams a long answer; returns when the typed error came."""
    stream = await client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": f"Tell me a very long story, number {number}."}],
        max_tokens=1500,
        temperature=1.0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    try:
        async for _ in stream:
            started.set()
    except openai.APIError as error:
        assert error.message
        return time.perf_counter()
    raise AssertionError("the stream ended without an error")


async def answer_when_back(client: openai.AsyncOpenAI) -> ChatCompletion:
    """The first answer after an engine's death; until then only "not ready" is allowed."""
    deadline = time.perf_counter() + 60
    while True:
        try:
            return await client.chat.completions.create(
                model="default", messages=[{"role": "user", "content": "Hello."}], max_tokens=4
            )
        except openai.InternalServerError as error:
            if error.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                raise
            if time.perf_counter() > deadline:
                raise
            await asyncio.sleep(0.2)


async def test_streams_get_a_typed_error_and_the_engine_recovers(own_suite: RunningSuite):
    client = client_of(own_suite)
    started = [asyncio.Event() for _ in range(STREAMS)]
    streams = [
        asyncio.create_task(stream_until_error(client, event, number))
        for number, event in enumerate(started)
    ]
    async with asyncio.timeout(60):
        await asyncio.gather(*(event.wait() for event in started))
    engines = own_suite.processes("antiphon_llm.engine")
    assert len(engines) == 1
    killed_at = time.perf_counter()
    engines[0].kill()
    ends = await asyncio.gather(*streams)
    assert max(ends) - killed_at <= ERROR_WITHIN_S
    answer = await answer_when_back(client)
    assert answer.choices[0].message.content
    status = own_suite.snapshot()["llm-0"]["status"]
    assert int(status["worker_restarts"]) >= 1

    def entries_held() -> int:
        return int(own_suite.snapshot()["llm-0"]["status"]["kv_entries_used"])

    await until(lambda: entries_held() == 0)


@pytest.mark.parametrize(
    "module", ["antiphon_vocoder.engine", "antiphon_vocoder.recognition.worker"]
)
async def test_a_dead_speech_worker_comes_back(own_suite: RunningSuite, module: str):
    workers = own_suite.processes(module)
    assert workers
    for worker in workers:
        worker.kill()
    deadline = time.perf_counter() + 90
    async with open_client(own_suite.url) as client:
        while True:
            try:
                spoken = await say(client, "Back again.")
                response = await client.post(
                    "/v1/audio/transcriptions",
                    data={"model": "whisper-1"},
                    files={"file": ("a.wav", _wav(spoken.samples))},
                )
                assert response.status_code == httpx.codes.OK
                break
            except Exception:
                if time.perf_counter() > deadline:
                    raise
                await asyncio.sleep(0.2)
    assert own_suite.processes(module)


def _wav(samples: Samples) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(REALTIME_RATE)
        file.writeframes(to_pcm16(samples))
    return buffer.getvalue()
