"""POST /v1/audio/speech with a language model that speaks itself."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from antiphon.common.v1 import audio_pb2
from antiphon.llm.v1 import chat_pb2, generate_pb2, llm_service_pb2
from antiphon_core.errors import ResourceExhausted, Unavailable
from fake_backends import LlmScript, SpeechScript
from gateway_bench import GatewayBench, events_of
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

FORM = audio_pb2.CodeFormat(codec="small", codebook_count=2, frame_rate=12.5)
FILE = b"".join(SpeechScript().chunks)


def spoken(*codes: int) -> generate_pb2.GenerateDelta:
    frames = audio_pb2.CodeFrames(codes=codes, codebook_count=2, frame_rate=12.5)
    return generate_pb2.GenerateDelta(codes=frames)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_bench() -> AsyncIterator[GatewayBench]:
    made = GatewayBench()
    for name, chat in (("talker", True), ("reader", False)):
        made.fakes.llm.models.append(
            llm_service_pb2.Model(id=name, context_limit=512, chat=chat, code_format=FORM)
        )
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def bench(module_bench: GatewayBench) -> GatewayBench:
    fakes = module_bench.fakes
    fakes.llm.script = LlmScript(extra_deltas=(spoken(1, 2, 3, 4), spoken(5, 6)))
    fakes.vocoder.script = SpeechScript()
    return module_bench


async def speak(bench: GatewayBench, **fields: object) -> httpx.Response:
    body = {"model": "talker", "input": "Hello.", **fields}
    return await bench.http.post("/v1/audio/speech", json=body)


async def test_its_codes_become_the_audio(bench: GatewayBench) -> None:
    response = await speak(bench, voice="alloy", instructions="Be calm.", response_format="wav")
    assert (response.status_code, response.content) == (200, FILE)
    assert "voice of its own" in response.headers["x-antiphon-notes"]
    assert bench.fakes.vocoder.codes[-1] == [1, 2, 3, 4, 5, 6]
    config = bench.fakes.vocoder.calls.requests[-1]
    assert (config.code_format, config.voice, config.exact_container) == (FORM, "", True)
    request = bench.fakes.llm.calls.requests[-1]
    assert request.model == "talker"
    assert generate_pb2.MODALITY_AUDIO in request.output.modalities
    said = [(message.role, message.parts[0].text) for message in request.chat.messages]
    assert said == [(chat_pb2.CHAT_ROLE_SYSTEM, "Be calm."), (chat_pb2.CHAT_ROLE_USER, "Hello.")]


async def test_a_model_without_a_template_continues_the_text(bench: GatewayBench) -> None:
    response = await speak(bench, model="reader")
    assert (response.status_code, response.content) == (200, FILE)
    assert "x-antiphon-notes" not in response.headers
    assert bench.fakes.llm.calls.requests[-1].text == "Hello."


async def test_events_join_to_the_file(bench: GatewayBench) -> None:
    events = events_of((await speak(bench, stream_format="sse")).text)
    assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1]) == FILE
    assert events[-1]["type"] == "speech.audio.done"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"speed": 2.0}, "speed"),
        ({"language": "de"}, "language"),
        ({"model": "reader", "instructions": "Be calm."}, "instructions"),
        ({"input": " "}, "input"),
        ({"model": "base-model"}, "model"),
    ],
)
async def test_what_it_cannot_do_is_named(bench: GatewayBench, fields: dict, param: str) -> None:
    response = await speak(bench, **fields)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == param


async def test_refusals_of_either_service_are_statuses(bench: GatewayBench) -> None:
    bench.fakes.vocoder.script = SpeechScript(fail_before=ResourceExhausted("full"))
    assert (await speak(bench)).status_code == 429
    bench.fakes.vocoder.script = SpeechScript(chunks=())
    bench.fakes.llm.script = LlmScript(fail_before=ResourceExhausted("full"))
    assert (await speak(bench)).status_code == 429
    await until(lambda: bench.fakes.vocoder.calls.running == bench.fakes.llm.calls.running == 0)


async def test_a_model_that_fails_while_it_speaks_is_an_error_behind_its_audio(
    bench: GatewayBench,
) -> None:
    bench.fakes.llm.script = LlmScript(
        words=(),
        extra_deltas=(spoken(1, 2),),
        fail_after_words=0,
        failure=Unavailable("died", reason="WORKER_DIED"),
    )
    events = events_of((await speak(bench, stream_format="sse")).text)
    assert [event.get("type") for event in events[:-1]] == ["speech.audio.delta"] * len(events[:-1])
    assert events[-1]["error"]["code"] == "bad_gateway" and len(events) > 1
    with pytest.raises(httpx.RemoteProtocolError):
        await speak(bench)
    await until(lambda: bench.fakes.vocoder.calls.running == bench.fakes.llm.calls.running == 0)
