"""Spoken chat answers: whole, streamed, and put back into the conversation by id."""

from __future__ import annotations

import base64
import time

import openai
import pytest
from antiphon.llm.v1 import generate_pb2 as gen
from antiphon_core.errors import ResourceExhausted, Unavailable
from antiphon_gateway.openai.spoken import spoken_id, transcript_of
from fake_backends import WORDS, LlmScript, SpeechScript
from gateway_bench import GatewayBench, events_of
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "".join(WORDS)
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}
AUDIO = b"".join(SpeechScript().chunks)


def deltas_of(text: str) -> list[dict]:
    return [event["choices"][0]["delta"] for event in events_of(text)[:-1] if event["choices"]]


async def test_stream_brings_transcript_audio_and_id(bench: GatewayBench) -> None:
    response = await bench.chat(
        **SPOKEN, stream=True, stream_options={"include_usage": True, "include_token_count": True}
    )
    events = events_of(response.text)
    assert events[-1] == "[DONE]"
    assert events[-2]["usage"]["completion_tokens"] == len(WORDS)
    assert sum(event.get("token_count", 0) for event in events[:-1]) == len(WORDS)
    deltas = deltas_of(response.text)
    assert deltas[0] == {"role": "assistant"}
    assert not any("content" in delta for delta in deltas)
    pieces = [delta["audio"] for delta in deltas if "audio" in delta]
    assert "".join(piece.get("transcript", "") for piece in pieces) == TEXT
    data = [piece["data"] for piece in pieces if "data" in piece]
    assert b"".join(base64.b64decode(piece) for piece in data) == AUDIO
    assert base64.b64decode("".join(data)) == AUDIO
    assert set(pieces[-1]) == {"id", "expires_at"}
    assert [piece for piece in pieces if "id" in piece] == pieces[-1:]
    assert 3500 < pieces[-1]["expires_at"] - time.time() <= 3600
    finish = [e["choices"][0]["finish_reason"] for e in events[:-1] if e["choices"]]
    assert finish[-1] == "stop"
    assert not any(finish[:-1])


async def test_the_sdk_joins_the_stream(bench: GatewayBench) -> None:
    async with openai.AsyncOpenAI(base_url=f"{bench.url}/v1", api_key="none") as client:
        async with client.chat.completions.stream(
            model="small", messages=[{"role": "user", "content": "Hi"}], **SPOKEN
        ) as events:
            message = (await events.get_final_completion()).choices[0].message
    assert message.audio is not None
    assert message.audio.transcript == TEXT
    assert base64.b64decode(message.audio.data) == AUDIO
    assert transcript_of(message.audio.id, "id") == TEXT


@pytest.mark.parametrize("stream", [False, True])
async def test_an_id_stands_for_its_transcript_in_history(
    bench: GatewayBench, stream: bool
) -> None:
    response = await bench.chat(**SPOKEN, stream=stream)
    if stream:
        answer_id = deltas_of(response.text)[-2]["audio"]["id"]
    else:
        answer_id = response.json()["choices"][0]["message"]["audio"]["id"]
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "audio": {"id": answer_id, "data": "AA=="}},
        {"role": "user", "content": "Again."},
    ]
    assert (await bench.chat(messages=history)).status_code == 200
    message = bench.fakes.llm.calls.requests[-1].chat.messages[1]
    assert [part.text for part in message.parts] == [TEXT]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "audio": {"id": "audio-1"}}, "messages[0].audio.id"),
        ({"role": "assistant", "audio": {"id": "audio_AAAA"}}, "messages[0].audio.id"),
        (
            {"role": "assistant", "audio": {"id": spoken_id("Hi", int(time.time()) - 1)}},
            "messages[0].audio.id",
        ),
        (
            {"role": "user", "audio": {"id": spoken_id("Hi", int(time.time()) + 99)}},
            "messages[0].audio",
        ),
        (
            {
                "role": "assistant",
                "content": "Ho",
                "audio": {"id": spoken_id("Hi", int(time.time()) + 99)},
            },
            "messages[0].audio",
        ),
    ],
)
async def test_ids_that_stand_for_nothing_are_refused(
    bench: GatewayBench, message: dict, param: str
) -> None:
    response = await bench.chat(messages=[message])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"audio": {"voice": "alloy", "format": "mp3"}}, "audio.format"),
        ({"audio": None}, "audio"),
        ({"audio": {"voice": "nobody", "format": "pcm16"}}, "audio.voice"),
    ],
)
async def test_what_cannot_be_streamed_is_refused(
    bench: GatewayBench, fields: dict, param: str
) -> None:
    response = await bench.chat(**{**SPOKEN, "stream": True, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_a_full_voice_is_a_status(bench: GatewayBench) -> None:
    bench.fakes.vocoder.script = SpeechScript(fail_before=ResourceExhausted("full"))
    assert (await bench.chat(**SPOKEN, stream=True)).status_code == 429
    await until(lambda: bench.fakes.llm.calls.running == 0)


async def test_a_refused_generation_is_a_status_and_frees_the_voice(bench: GatewayBench) -> None:
    bench.fakes.llm.script = LlmScript(fail_before=ResourceExhausted("full"))
    assert (await bench.chat(**SPOKEN, stream=True)).status_code == 429
    await until(lambda: bench.fakes.vocoder.calls.running == 0)


@pytest.mark.parametrize("who", ["llm", "vocoder"])
async def test_a_failure_on_the_way_is_an_error_event(bench: GatewayBench, who: str) -> None:
    died = Unavailable("died", reason="WORKER_DIED")
    if who == "llm":
        bench.fakes.llm.script = LlmScript(fail_after_words=2, failure=died)
    else:
        bench.fakes.vocoder.script = SpeechScript(fail_after_chunks=1, failure=died)
    events = events_of((await bench.chat(**SPOKEN, stream=True)).text)
    assert events[-1]["error"]["code"] == "bad_gateway"
    await until(lambda: bench.fakes.vocoder.calls.running == 0)
    await until(lambda: bench.fakes.llm.calls.running == 0)


async def test_an_answer_of_calls_alone_is_silent(bench: GatewayBench) -> None:
    call = gen.ToolCallDelta(id="c1", name="look", arguments="{}")
    bench.fakes.llm.script = LlmScript(
        words=(),
        extra_deltas=(gen.GenerateDelta(tool_calls=[call]),),
        finish="FINISH_REASON_TOOL_CALLS",
    )
    response = await bench.chat(**SPOKEN, stream=True)
    deltas = deltas_of(response.text)
    assert not any("audio" in delta for delta in deltas)
    assert deltas[1]["tool_calls"][0]["id"] == "c1"
    assert events_of(response.text)[-1] == "[DONE]"
    await until(lambda: bench.fakes.vocoder.calls.running == 0)
