"""Transcription sessions, prepared replies, pacing, limits and schemas over real sockets."""

from __future__ import annotations

import asyncio
import base64
import json
import time

import httpx
import openai
import pytest
from antiphon.llm.v1 import generate_pb2 as gen
from antiphon.vocoder.v1 import recognition_service_pb2 as rec
from antiphon_core import metrics
from antiphon_core.node_types import NodeMeasures
from jsonschema import Draft202012Validator
from oracle import UNASKED
from realtime_bench import kinds, of
from realtime_gateway import RealtimeGateway, loud
from support.waiting import until
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

SEGMENT = "conversation.item.input_audio_transcription.segment"
COMPLETED = "conversation.item.input_audio_transcription.completed"


async def test_the_diarising_name_asks_who_speaks(gateway: RealtimeGateway) -> None:
    async with gateway.session("?intent=transcription&model=gpt-4o-transcribe-diarize") as client:
        await client.speak()
        events = await client.until(COMPLETED)
        (segment,) = of(events, SEGMENT)
        assert (segment["speaker"], segment["text"]) == ("A", "what time is it")
        assert segment["item_id"] == events[-1]["item_id"]
        assert 0 <= segment["start"] < segment["end"] <= 1
        assert gateway.running.configs[-1].HasField("diarization")


async def refused(gateway: RealtimeGateway, query: str = "") -> tuple[int, dict, dict]:
    with pytest.raises(InvalidStatus) as caught:
        async with connect(gateway.socket_url + query):
            pass
    response = caught.value.response
    return response.status_code, json.loads(response.body)["error"], dict(response.headers)


async def test_a_transcription_session_needs_no_voice_and_no_model(
    gateway: RealtimeGateway,
) -> None:
    gateway.fakes.measures = NodeMeasures(slots_used=4, slots_total=4)
    await until(lambda: gateway.backends.vocoder.pool.slots == (4, 4))
    async with gateway.session("?intent=transcription&model=tiny") as client:
        session = client.events[0]["session"]
        assert session["object"] == "realtime.transcription_session"
        assert session["audio"]["input"]["transcription"]["model"] == "tiny"
        await client.speak()
        events = await client.until(COMPLETED)
        assert events[-1]["transcript"] == "what time is it"
        deltas = of(events, "conversation.item.input_audio_transcription.delta")
        assert [event["delta"] for event in deltas] == ["what", " time is it"]
        await client.send("response.create")
        assert (await client.until("error"))[-1]["error"]["code"] == "response_not_supported"
    assert not gateway.running.prompts
    status, error, _ = await refused(gateway, "?intent=transcription&model=other")
    assert (status, error["code"]) == (404, "model_not_found")
    status, error, _ = await refused(gateway, "?intent=dictation")
    assert (status, error["param"]) == (400, "intent")


async def test_the_sdk_opens_one_with_a_secret(gateway: RealtimeGateway) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused") as sdk:
        audio = {"input": {"turn_detection": None, "transcription": {"model": "tiny"}}}
        made = await sdk.realtime.client_secrets.create(
            session={"type": "transcription", "audio": audio}  # type: ignore[typeddict-item]
        )
        assert made.session.type == "transcription" and made.value.startswith("ek_")
        browser = sdk.with_options(api_key=made.value)
        async with browser.realtime.connect(extra_query={"intent": "transcription"}) as session:
            await session.input_audio_buffer.append(audio=base64.b64encode(loud(0.5)).decode())
            await session.input_audio_buffer.commit()
            async for event in session:
                if event.type == COMPLETED:
                    assert event.transcript == "what time is it"
                    break


async def test_a_secret_of_one_type_refuses_the_fields_of_the_other(
    gateway: RealtimeGateway,
) -> None:
    async with httpx.AsyncClient() as client:
        answer = await client.post(
            f"{gateway.url}/v1/realtime/client_secrets",
            json={"session": {"type": "transcription", "instructions": "x"}},
        )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "session.instructions"


async def test_no_session_opens_where_no_voice_is_free(gateway: RealtimeGateway) -> None:
    gateway.fakes.measures = NodeMeasures(slots_used=4, slots_total=4)
    await until(lambda: gateway.backends.vocoder.pool.slots == (4, 4))
    status, error, headers = await refused(gateway)
    assert (status, error["code"]) == (429, "capacity_exceeded")
    assert int(headers["retry-after"]) >= 1
    gateway.fakes.measures = NodeMeasures(slots_used=3, slots_total=4)
    await until(lambda: gateway.backends.vocoder.pool.slots == (3, 4))
    async with gateway.session():
        pass


async def test_a_prepared_reply_saves_the_rest_of_the_silence(gateway: RealtimeGateway) -> None:
    gateway.script.word_delay = 0.08
    async with gateway.session() as client:
        await client.update(speculative_ms=200)
        await client.append(loud(0.5))
        began = time.monotonic()
        for _ in range(30):  # 600 ms of silence, as fast as a microphone delivers it.
            await client.append(bytes(960))
            await asyncio.sleep(max(0.0, began + 0.02 * (_ + 1) - time.monotonic()))
        events = await client.until("response.output_audio.delta")
        stopped = kinds(events).index("input_audio_buffer.speech_stopped")
        assert kinds(events)[stopped:].count("response.created") == 1
        assert gateway.running.configs[-1].turn_detection.silence.ToMilliseconds() == 200
        done = (await client.until("response.done"))[-1]["response"]
        assert done["status"] == "completed"
        assert done["output"][0]["content"][0]["transcript"] == "Hello there, friend."
        audio = b"".join(
            base64.b64decode(event["delta"])
            for event in of(client.events, "response.output_audio.delta")
        )
        assert len(audio) == 2 * 1200 * len("Hello there, friend.")
        client.oracle.finish()
    assert len(gateway.running.prompts) == 1
    assert 'antiphon_realtime_speculations_total{outcome="used"}' in metrics.render().decode()


async def test_resumed_speech_hears_nothing_of_the_prepared_reply(
    gateway: RealtimeGateway,
) -> None:
    async with gateway.session() as client:
        detection = {"turn_detection": {"silence_duration_ms": 2000}}
        await client.update(speculative_ms=200, audio={"input": detection})
        await client.append(loud(0.5) + bytes(960 * 13))
        await until(lambda: len(gateway.running.prompts) == 1)
        await client.append(loud(0.5))
        await until(lambda: gateway.running.voice == 0 and gateway.running.llm == 0)
        assert "response.created" not in kinds(client.events)
        await client.append(bytes(960 * 13))
        await asyncio.sleep(1.85)
        await client.append(bytes(960 * 95))
        events = await client.until("response.done")
        assert kinds(events).count("input_audio_buffer.speech_started") == 1
        assert len(of(events, "response.created")) == 1
        said = of(events, COMPLETED)[0]["transcript"]
        assert said == "what time is it what time is it"
        client.oracle.finish()


async def test_audio_runs_ahead_of_its_playback_by_the_lead_at_most(
    gateway: RealtimeGateway,
) -> None:
    gateway.script.words = tuple(" word" for _ in range(12))  # 3 s of audio at once.
    async with gateway.session() as client:
        await client.update(audio_lead_ms=1000)
        await client.say("talk")
        began, seconds = time.monotonic(), 0.2
        await client.send("response.create")
        await client.until("response.output_audio.delta")
        while (event := await client.receive())["type"] != "response.done":
            if event["type"] == "response.output_audio.delta":
                seconds += len(base64.b64decode(event["delta"])) / 48_000
                assert seconds - (time.monotonic() - began) < 1.6
        assert seconds == pytest.approx(3.0)
        assert time.monotonic() - began > 1.2


async def test_an_acknowledgement_is_spoken_after_the_call(gateway: RealtimeGateway) -> None:
    async with gateway.session() as client:
        tool = {"type": "function", "name": "clock", "ack_phrases": ["One moment."]}
        await client.update(tools=[tool])
        await until(lambda: gateway.gateway.phrases._made)
        gateway.script.tool_pieces = (
            gen.ToolCallDelta(index=0, id="call_7", name="clock", arguments="{}"),
        )
        await client.say("what time is it")
        await client.send("response.create")
        events = await client.until("response.done")
        output = events[-1]["response"]["output"]
        assert [item["type"] for item in output] == ["function_call", "message"]
        assert output[1]["content"][0]["transcript"] == "One moment."
        audio = sum(
            len(base64.b64decode(event["delta"]))
            for event in of(events, "response.output_audio.delta")
        )
        assert audio == 2 * 1200 * len("One moment.")
        client.oracle.finish()
    async with gateway.session() as client:
        await client.update(tools=[tool])
        await asyncio.sleep(0.1)
    assert gateway.running.texts.count("One moment.") == 1, "another session uses the same audio"


async def test_rate_limits_are_told_where_there_are_any() -> None:
    limits = {"tenant": {"tokens_per_second": 1000, "requests_per_second": 50}}
    gateway = RealtimeGateway(quota=limits)
    await gateway.start()
    try:
        async with gateway.session() as client:
            await client.say("hi")
            await client.send("response.create")
            events = await client.until("rate_limits.updated")
            assert kinds(events)[-2:] == ["response.created", "rate_limits.updated"]
            names = [limit["name"] for limit in events[-1]["rate_limits"]]
            assert names == ["requests", "tokens"]
            await client.until("response.done")
    finally:
        await gateway.stop()


async def test_semantic_turns_are_judged_by_the_recogniser(gateway: RealtimeGateway) -> None:
    async with gateway.session() as client:
        detection = {"type": "semantic_vad", "eagerness": "low"}
        await client.update(audio={"input": {"turn_detection": detection}})
        await client.speak()
        await client.until("response.done")
    asked = gateway.running.configs[-1].turn_detection
    assert asked.mode == rec.TurnDetection.MODE_SEMANTIC
    assert asked.eagerness == rec.TurnDetection.EAGERNESS_LOW
    assert not asked.HasField("silence") and not asked.HasField("max_silence")


async def test_schemas_describe_every_event(gateway: RealtimeGateway) -> None:
    async with httpx.AsyncClient() as client:
        document = (await client.get(f"{gateway.url}/v1/realtime/schemas")).json()
    assert set(document["server_events"]) >= UNASKED
    assert len(document["client_events"]) == 11
    async with gateway.session() as client:
        await client.update(optional_events=["output_audio_buffer.started"])
        await client.speak()
        await client.until("response.done")
        await client.send("nonsense")
        await client.until("error")
    for event in client.events:
        schema = {"$defs": document["$defs"], **document["server_events"][event["type"]]}
        Draft202012Validator(schema).validate(event)
    append = {"$defs": document["$defs"], **document["client_events"]["input_audio_buffer.append"]}
    Draft202012Validator(append).validate({"type": "input_audio_buffer.append", "audio": "AAAA"})
    assert list(Draft202012Validator(append).iter_errors({"type": "input_audio_buffer.append"}))


async def test_conversations_near_the_limit_are_summarised(gateway: RealtimeGateway) -> None:
    gateway.script.prompt_tokens = 1900
    async with gateway.session() as client:
        await client.update(output_modalities=["text"])
        for _ in range(4):
            await client.say("tell me a long story about the sea")
            await client.send("response.create")
            await client.until("response.done")
        summaries = [
            prompt for prompt in gateway.running.prompts if "Summarise" in str(prompt.chat)
        ]
        assert summaries and summaries[0].sampling.temperature == 0
        await client.say("and now")
        await client.send("response.create")
        await client.until("response.done")
    prompts = [p for p in gateway.running.prompts if "Summarise" not in str(p.chat)]
    system = prompts[-1].chat.messages[0].parts[0].text
    assert system.endswith("Earlier in this conversation: Hello there, friend.")
